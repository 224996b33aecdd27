"""@locks.cached: a function whose results are computed once."""

import asyncio
import inspect
import pickle
import threading

import pytest
from asgiref.sync import iscoroutinefunction
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.test import RequestFactory
from prometheus_client import CollectorRegistry

from django_redislock import locks, metrics
from tests.lock_tools import awaiting, start, waiting
from tests.tools import wait_until

FILES = "django.core.cache.backends.filebased.FileBasedCache"


@pytest.fixture(autouse=True)
def values(settings, tmp_path):
    """A cache for values, which all processes share."""
    entry = {"BACKEND": FILES, "LOCATION": str(tmp_path)}
    settings.CACHES = {**settings.CACHES, "values": entry}
    return caches["values"]


@locks.cached("rates:{currency}:{day}", timeout=60, cache="values")
def rates(currency, day="today"):
    """Return the rates of a currency."""
    return [currency, day]


class Shop:
    def __init__(self, pk):
        self.pk = pk
        self.computed = 0

    @locks.cached("shop:{self.pk}:best:{limit}", timeout=60, cache="values")
    def best(self, limit):
        self.computed += 1
        return self.computed

    @locks.cached(lambda cls, pk=1: f"{cls.__name__}:{pk}", timeout=60, cache="values")
    @classmethod
    def named(cls, pk=1):
        return [cls.__name__, pk]

    @locks.cached("triple:{number}", timeout=60, cache="values")
    @staticmethod
    def triple(number):
        return 3 * number


class Branch(Shop):
    pass


def test_the_key_has_the_arguments_of_the_call(values):
    assert rates("EUR") == ["EUR", "today"]
    assert rates(day="monday", currency="EUR") == ["EUR", "monday"]
    assert values.get("rates:EUR:today") == ["EUR", "today"]
    values.set("rates:EUR:today", "cached")
    rates.invalidate("EUR", "monday")
    assert rates("EUR") == "cached"
    rates.invalidate(currency="EUR")
    assert rates("EUR") == ["EUR", "today"]
    assert rates("E\n") != rates("E\\n")
    assert rates(None) == rates(None) == values.get("rates:None:today") == [None, "today"]


def test_a_value_that_was_begun_before_invalidate_is_not_stored(values):
    may_end = threading.Event()
    runs = []

    @locks.cached("rates:{currency}", timeout=60, stale=60, cache="values")
    def compute(currency):
        runs.append(currency)
        assert may_end.wait(60)
        return len(runs)

    first = start(compute, "EUR")
    wait_until(lambda: runs)
    waiting_callers = [start(compute, "EUR") for _ in range(3)]
    waiting(locks, "cache:values:rates:EUR", 1)
    compute.invalidate("EUR")
    may_end.set()
    assert sorted([first.result(), *(each.result() for each in waiting_callers)]) == [1, 2, 2, 2]
    assert compute("EUR") == 2
    compute.invalidate("EUR")
    assert compute("EUR") == 3


def test_a_value_is_not_left_if_invalidate_comes_while_it_is_stored(values, monkeypatch):
    @locks.cached("rates:{currency}", timeout=60, cache="values")
    def compute(currency):
        return "outdated"

    store = type(values).set

    def invalidate_first(cache, key, value, *args, **options):
        if value == "outdated":
            compute.invalidate("EUR")
        store(cache, key, value, *args, **options)

    monkeypatch.setattr(type(values), "set", invalidate_first)
    assert compute("EUR") == "outdated"
    assert values.get("rates:EUR") is None


def test_a_value_is_stored_although_the_cache_evicts_everything_else(values):
    @locks.cached("rates:{currency}", timeout=60, cache="values")
    def compute(currency):
        values.clear()
        return currency

    compute.invalidate("EUR")
    assert compute("EUR") == "EUR"
    assert values.get("rates:EUR") == "EUR"


def test_methods_can_be_cached_and_invalidated(values):
    shop, other = Shop(1), Shop(2)
    assert shop.best(5) == shop.best(limit=5) == 1
    assert other.best(5) == 1
    assert shop.best(6) == 2
    shop.best.invalidate(5)
    assert shop.best(5) == 3
    Shop.best.invalidate(shop, limit=5)
    assert Shop.best(shop, 5) == 4
    assert Shop.named(3) == Shop(1).named(pk=3) == ["Shop", 3]
    assert Branch.named() == ["Branch", 1]
    values.set("Shop:3", "outdated")
    values.set("Branch:1", "outdated")
    Shop.named.invalidate(3)
    assert Shop.named(3) == ["Shop", 3]
    assert Branch.named() == "outdated"
    Branch(1).named.invalidate()
    assert Branch.named() == ["Branch", 1]
    assert Shop.triple(2) == Shop(1).triple(2) == values.get("triple:2") == 6
    Shop(1).triple.invalidate(2)
    assert values.get("triple:2") is None


async def test_a_coroutine_function_can_be_cached(values):
    runs = []
    may_end = asyncio.Event()

    @locks.cached("rates:{currency}", timeout=60, cache="values")
    async def compute(currency):
        runs.append(currency)
        await may_end.wait()
        return len(runs)

    assert iscoroutinefunction(compute)
    callers = [asyncio.create_task(compute("EUR")) for _ in range(5)]
    await awaiting(locks, "cache:values:rates:EUR", 1)
    may_end.set()
    assert await asyncio.gather(*callers) == [1] * 5
    await compute.ainvalidate("EUR")
    assert await compute("EUR") == 2
    assert await compute("EUR") == 2


def test_it_looks_like_the_function(values):
    assert rates.__doc__ == "Return the rates of a currency."
    assert list(inspect.signature(rates).parameters) == ["currency", "day"]
    assert "rates" in repr(rates)
    assert pickle.loads(pickle.dumps(rates)) is rates  # noqa: S301  our own
    assert pickle.loads(pickle.dumps(Shop(1).best))(7) == 1  # noqa: S301  our own


def generate(currency):
    yield currency


async def async_key(currency):
    return currency


@pytest.mark.parametrize(
    ("function", "key", "options", "error", "text"),
    [
        (rates, "rates", {}, ImproperlyConfigured, r"no field.*\(currency, day\)"),
        (rates, "rates:{other}", {}, ImproperlyConfigured, r"\{other\}.*this parameter"),
        (rates, "rates:{day.__class__}", {}, ImproperlyConfigured, "begin with '_'"),
        (rates, 5, {}, TypeError, "key must be a str, or a function .* got 5"),
        (rates, async_key, {}, TypeError, "key must be a str, or a function"),
        (generate, "{currency}", {}, TypeError, "generator function"),
        (rates, "{day}", {"timeout": 0}, ValueError, "timeout must be positive"),
    ],
)
def test_bad_input_is_found_where_the_function_is_defined(function, key, options, error, text):
    with pytest.raises(error, match=text):
        locks.cached(key, **{"timeout": 60} | options)(function)


@pytest.mark.parametrize("key", ["total:{shop.pk}", "total:{shop.pk!r}", "total:{order[shop]}"])
def test_an_attribute_or_item_that_is_none_is_refused(values, key):
    @locks.cached(key, timeout=60, cache="values")
    def total(shop, order):
        return order["shop"]

    with pytest.raises(ValueError, match=r"(\{shop\.pk\}|\{order\[shop\]\}) is None"):
        total(Shop(None), {"shop": None})
    with pytest.raises(ValueError, match="is None"):
        total.invalidate(Shop(None), {"shop": None})
    assert total(Shop(1), {"shop": 1}) == 1
    broken = locks.cached(lambda currency: None, timeout=60, cache="values")(str.upper)
    with pytest.raises(TypeError, match="key must be a str, not None"):
        broken("EUR")


# Metrics


@locks.guard("pay:{pk}")
def pay(request, pk):
    return HttpResponse()


def test_the_number_of_series_does_not_grow_with_the_keys():
    registry = CollectorRegistry()
    metrics.install(registry=registry, using=[])
    numbers_of_series = set()
    for number in range(10):
        rates(number)
        pay(RequestFactory().get("/"), number)
        numbers_of_series.add(sum(len(family.samples) for family in registry.collect()))
    assert len(numbers_of_series) == 1
