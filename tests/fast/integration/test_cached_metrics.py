"""What metrics show of guards and of computed values."""

import pytest
from django.core.cache import cache
from django.http import HttpResponse
from django.test import RequestFactory
from prometheus_client import CollectorRegistry

from django_redislock import locks, metrics


@pytest.fixture(autouse=True)
def empty_cache():
    yield
    cache.clear()


@locks.guard("pay:{pk}")
def pay(request, pk):
    return HttpResponse()


def test_the_number_of_series_does_not_grow_with_the_keys():
    registry = CollectorRegistry()
    metrics.install(registry=registry, using=[])
    numbers_of_series = set()
    for number in range(10):
        locks.get_or_set(f"key:{number}", lambda: 0, 60)
        pay(RequestFactory().get("/"), number)
        numbers_of_series.add(sum(len(family.samples) for family in registry.collect()))
    assert len(numbers_of_series) == 1
