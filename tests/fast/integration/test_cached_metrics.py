"""What metrics and signals show of guards and of computed values."""

import pytest
from django.core.cache import cache
from django.http import HttpResponse
from django.test import RequestFactory
from prometheus_client import CollectorRegistry

from django_redislock import locks, metrics
from django_redislock.signals import lock_acquired, lock_refused, lock_released
from django_redislock.testing import held_elsewhere
from tests.lock_tools import listening

requests = RequestFactory()


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

    def series():
        return sum(len(family.samples) for family in registry.collect())

    locks.get_or_set("key:0", lambda: 0, 60)
    pay(requests.get("/"), 0)
    before = series()
    for number in range(1, 20):
        locks.get_or_set(f"key:{number}", lambda: 0, 60)
        pay(requests.get("/"), number)
    assert series() == before


def test_a_computation_and_a_guard_send_the_signals_of_their_locks():
    sent = []

    def receive(signal, name, kind, **about):
        sent.append((signal, name, kind))

    with listening(lock_acquired, receive), listening(lock_released, receive):
        locks.get_or_set("rates", lambda: 1, 60)
        locks.get_or_set("rates", lambda: 1, 60)  # a hit
        pay(requests.get("/"), 7)
    assert sent == [
        (lock_acquired, "cache:default:rates", "readwrite"),
        (lock_released, "cache:default:rates", "readwrite"),
        (lock_acquired, "pay:7", "mutex"),
        (lock_released, "pay:7", "mutex"),
    ]
    with held_elsewhere("pay:7"), listening(lock_refused, receive):
        pay(requests.get("/"), 7)
    assert sent[-1] == (lock_refused, "pay:7", "mutex")
