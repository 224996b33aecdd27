"""`get_or_set()` and `cached()`: one caller computes a value, and the others wait for it."""

import asyncio
import itertools
import threading
import time

import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from prometheus_client import CollectorRegistry
from redis.exceptions import NoPermissionError

from django_redislock import LockError, LockNotAcquired, cache_miss, locks, metrics
from django_redislock.signals import lock_refused
from django_redislock.testing import held_elsewhere, lose
from tests.lock_tools import (
    hanging,
    listening,
    renewed,
    start,
    waiting,
    within,
)
from tests.round_trips import RoundTrips
from tests.servers.memcached import memcached
from tests.tools import Child, wait_until

FILES = "django.core.cache.backends.filebased.FileBasedCache"

LOCK = "cache:values:rates"


@pytest.fixture
def values(settings, tmp_path):
    """A cache for values, which all processes share."""
    entry = {"BACKEND": FILES, "LOCATION": str(tmp_path)}
    settings.CACHES = {**settings.CACHES, "values": entry}
    return caches["values"]


class Slow:
    """A computation that goes on when the test says so. It returns the number of its runs."""

    def __init__(self):
        self.numbers = itertools.count(1)
        self.began = threading.Event()
        self.may_end = threading.Event()

    def __call__(self):
        number = next(self.numbers)
        self.began.set()
        assert self.may_end.wait(60)
        return number


def get(default, timeout=60, **options):
    return locks.get_or_set("rates", default, timeout, **{"cache": "values"} | options)


async def aget(default, **options):
    return await locks.aget_or_set("rates", default, 60, **{"cache": "values"} | options)


def raising(error):
    def compute():
        raise error

    return compute


def refuse():
    pytest.fail("it was computed again")


@pytest.fixture
def arrived():
    """Wait until so many callers have found that another one computes."""
    refused = []

    def wait(count):
        wait_until(lambda: len(refused) == count)
        waiting(locks, LOCK, 1)  # one of them for the whole process

    with listening(lock_refused, lambda **about: refused.append(about["name"])):
        yield wait


# A hit


def test_a_hit_costs_one_get_of_the_cache_and_no_lock():
    assert locks.get_or_set("hit", lambda: [1, 2], 60) == [1, 2]
    with RoundTrips(of_this_thread=True) as made:
        assert locks.get_or_set("hit", refuse, 60) == [1, 2]
    assert made.count == 1
    caches["default"].delete("hit")


@pytest.mark.parametrize("stale", [0, 60])
def test_any_value_is_a_value(values, stale):
    for value in (None, False, [], ["a", "b", "c"], {"EUR": 1}):
        assert get(value, stale=stale) == value
        assert get(refuse, stale=stale) == value
        if not stale:
            assert values.get("rates") == value
        values.delete("rates")


def test_versions_of_a_key_are_values_with_locks_of_their_own(values):
    def compute():
        return locks.get_or_set("2:rates", lambda: "inner", 60, cache="values")

    assert get(lambda: get(compute, version=2) + " of outer") == "inner of outer"
    assert get(refuse, version=1) == "inner of outer"
    assert get(refuse, version=2) == "inner"


# A miss


def test_one_computes_and_the_others_get_its_value_at_the_same_time(values, arrived):
    """The computation takes longer than its lease."""
    slow = Slow()
    callers = [start(lambda: get(slow, lease=1.5)) for _ in range(10)]
    arrived(9)
    assert locks.get(LOCK).timeout == 1.5
    renewed(locks, LOCK, times=2)
    readers = [start(locks.read_lock(LOCK).acquire) for _ in range(3)]
    waiting(locks, LOCK, 4)
    slow.may_end.set()
    assert all(each.result() for each in readers)  # they keep the lock
    assert [each.result() for each in callers] == [1] * 10
    locks.force_release(LOCK)


def test_an_exception_reaches_its_caller_and_one_waiter_computes_for_the_others(values, arrived):
    first, second = Slow(), Slow()

    def compute():
        if not first.began.is_set():
            first()
            raise ZeroDivisionError
        return second()

    callers = [start(get, compute) for _ in range(20)]
    arrived(19)
    first.may_end.set()
    assert second.began.wait(60)
    waiting(locks, LOCK, 1)  # one of the others
    second.may_end.set()
    results = [each.exception() or each.result() for each in callers]
    assert sorted(map(repr, results)) == ["1"] * 19 + ["ZeroDivisionError()"]


async def compute_async():
    return 1


@pytest.mark.parametrize(
    ("default", "error"),
    [
        (raising(KeyboardInterrupt), KeyboardInterrupt),
        (raising(StopIteration), RuntimeError),
        (raising(ConnectionError("bank")), ConnectionError),  # no outage of ours
        (compute_async, TypeError),
    ],
)
def test_a_computation_that_fails_runs_once_and_releases_the_lock(values, default, error):
    runs = []

    def compute():
        runs.append(1)
        return default()

    with pytest.raises(error):
        get(compute)
    assert len(runs) == 1
    assert locks.get(LOCK) is None


def test_a_waiter_computes_after_the_computing_process_has_died(values):
    held = locks.write_lock(LOCK, timeout=0.2, auto_renewal=False)
    assert held.acquire()
    with within(10):
        assert start(get, lambda: "alive").result() == "alive"


# Recursion


async def test_a_computation_that_asks_for_its_own_value_is_an_error(values):
    """A task that outlives the computation can ask for it."""
    tasks = []
    computed = asyncio.Event()

    async def later():
        await computed.wait()
        values.delete("rates")
        return await aget(lambda: "later")

    async def compute():
        tasks.append(asyncio.create_task(later()))
        return "computed"

    assert await aget(compute) == "computed"
    computed.set()
    assert await tasks[0] == "later"
    values.delete("rates")
    with pytest.raises(LockError, match="'rates' asks for its own value"):
        await aget(lambda: sync_to_async(get)(refuse))


# An expired value


@pytest.fixture
def moving_time(monkeypatch):
    """Seconds that the test adds to the clock of caches."""
    added = [0.0]
    now = time.time
    monkeypatch.setattr("time.time", lambda: now() + added[0])
    return added


def test_a_stale_value_is_returned_while_one_caller_refreshes_it(values, moving_time):
    assert get(lambda: "old", 10, stale=60) == "old"
    moving_time[0] = 9
    assert get(refuse, 10) == "old"
    moving_time[0] = 11
    with pytest.raises(ZeroDivisionError):
        get(raising(ZeroDivisionError), 10, stale=60)
    slow = Slow()
    refreshing = start(lambda: get(slow, 10, stale=60))
    assert slow.began.wait(60)
    assert get(refuse, 10, stale=60) == "old"
    without_stale = start(lambda: get(refuse, 10))
    waiting(locks, LOCK, 1)
    slow.may_end.set()
    assert without_stale.result() == refreshing.result() == get(refuse, 10, stale=60) == 1
    moving_time[0] += 71
    assert get(lambda: "new", 10) == "new"


# The lock is lost, and Redis is away


def taken_over(name):
    locks.force_release(name)
    assert start(get, lambda: "new").result() == "new"


@pytest.mark.parametrize(
    ("take", "stored"),
    [(lose, None), (locks.force_release, None), (taken_over, "new")],
    ids=["noticed", "not noticed", "computed by another"],
)
def test_a_value_computed_after_the_lock_was_lost_is_returned_but_not_stored(values, take, stored):
    def compute():
        take(LOCK)
        return "late"

    assert get(compute) == "late"
    assert values.get("rates") == stored


@pytest.fixture(autouse=True)
def no_recent_outage(monkeypatch):
    """An outage is logged every five seconds at most."""
    monkeypatch.setattr(cache_miss, "_log_interval", cache_miss._LogInterval())


@pytest.mark.parametrize("alias", ["values", "own"])
def test_without_redis_the_value_is_computed_without_a_lock(
    values, own_locks, own_server, caplog, alias
):
    own_server.stop()
    assert own_locks.get_or_set("rates", lambda: 1, 60, cache=alias) == 1
    assert async_to_sync(own_locks.aget_or_set)("rates", lambda: 1, 60, cache=alias) == 1
    assert values.get("rates") == (1 if alias == "values" else None)
    assert caplog.text.count("Value computed without a lock: key='rates' error=") == 1


def test_waiters_compute_if_redis_goes_away(values, own_locks, own_server):
    slow = Slow()
    callers = [
        start(lambda: own_locks.get_or_set("rates", slow, 60, cache="own")) for _ in range(3)
    ]
    waiting(own_locks, "cache:own:rates", 1)
    own_server.stop()
    slow.may_end.set()
    assert sorted(each.result() for each in callers) == [1, 2, 3]


@pytest.mark.parametrize("alias", ["values", "own"])
def test_a_redis_that_hangs_delays_a_value_for_a_bounded_time(values, alias_on, own_server, alias):
    own_locks = alias_on(own_server.url, socket_timeout=1)
    with hanging(own_server), within(30):
        assert own_locks.get_or_set("rates", lambda: "new", 60, cache=alias) == "new"


def test_an_error_that_is_no_outage_is_raised(values, own_locks, own_redis):
    own_redis.acl_setuser(own_redis.acl_whoami(), enabled=True, commands=["-eval", "-evalsha"])
    with pytest.raises(NoPermissionError):
        own_locks.get_or_set("rates", refuse, 60, cache="values")


# Async code


async def test_coroutines_behind_a_cancelled_waiter_go_on_waiting(values, arrived):
    slow = Slow()
    thread = start(get, slow)
    await asyncio.to_thread(slow.began.wait, 60)
    with pytest.raises(LockNotAcquired):
        await aget(refuse, blocking_timeout=0.05)  # its turn and its wait are refused
    first = asyncio.create_task(aget(refuse))
    await asyncio.to_thread(arrived, 3)
    second = asyncio.create_task(aget(refuse))
    third = asyncio.create_task(aget(refuse, blocking_timeout=0.05))
    await asyncio.to_thread(arrived, 5)
    with pytest.raises(LockNotAcquired, match=r"'rates' was not computed within 0\.05 s"):
        await third
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    slow.may_end.set()
    assert await second == thread.result() == 1


async def test_sync_code_in_an_event_loop_computes_instead_of_waiting(values, caplog):
    with held_elsewhere(locks.write_lock(LOCK)):
        assert get(lambda: "computed", blocking_timeout=60) == "computed"
    assert "error=A wait would block the running event loop" in caplog.text
    assert get(refuse) == "computed"


# Memcached


def test_memcached_can_store_the_values(settings):
    pytest.importorskip("pymemcache")
    backend = "django.core.cache.backends.memcached.PyMemcacheCache"
    with memcached() as server:
        entry = {"BACKEND": backend, "LOCATION": server.location}
        settings.CACHES = {**settings.CACHES, "values": entry}
        long_key, large = "k" * 240, "x" * 2_000_000
        assert locks.get_or_set(long_key, lambda: "value", 60, cache="values") == "value"
        assert locks.get_or_set(long_key, refuse, 60, cache="values") == "value"
        assert get(lambda: large) == large  # too large to be stored
        server.kill()
        assert get(lambda: "computed") == "computed"
        caches["values"].close()


# A cache in the memory of each process

LOCAL_VALUE = """
from django.conf import settings
from django_redislock import locks
settings.CACHES["local"] = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
say(locks.get_or_set("rates", lambda: say("computes") or hear(), 60, cache="local"))
hear()
"""


def test_a_process_does_not_wait_for_values_that_it_cannot_see(settings):
    backend = "django.core.cache.backends.locmem.LocMemCache"
    settings.CACHES = {**settings.CACHES, "local": {"BACKEND": backend}}
    with Child(LOCAL_VALUE) as child:
        child.expect("computes")
        assert get(lambda: "own", cache="local") == "own"
        child.tell("theirs")
        child.expect("theirs")
    caches["local"].clear()


# cached(): a function whose results are computed once


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
    values.set("Shop:3", "outdated")
    Shop.named.invalidate(3)
    assert Shop.named(3) == ["Shop", 3]


async def test_a_coroutine_function_can_be_cached(values):
    runs = []

    @locks.cached("rates:{currency}", timeout=60, cache="values")
    async def compute(currency):
        runs.append(currency)
        return len(runs)

    assert iscoroutinefunction(compute)
    assert await asyncio.gather(*(compute("EUR") for _ in range(5))) == [1] * 5
    await compute.ainvalidate("EUR")
    assert await compute("EUR") == 2


async def async_key(currency):
    return currency


@pytest.mark.parametrize(
    ("key", "error", "text"),
    [
        ("rates", ImproperlyConfigured, r"no field.*\(currency, day\)"),
        ("rates:{other}", ImproperlyConfigured, r"\{other\}.*this parameter"),
        ("rates:{day.__class__}", ImproperlyConfigured, "begin with '_'"),
        (async_key, TypeError, "key must be a str, or a function"),
    ],
)
def test_bad_input_is_found_where_the_function_is_defined(key, error, text):
    with pytest.raises(error, match=text):
        locks.cached(key, timeout=60)(rates)


def test_an_attribute_that_is_none_is_refused(values):
    @locks.cached("total:{shop.pk}", timeout=60, cache="values")
    def total(shop):
        return "total"

    for use in (total, total.invalidate):
        with pytest.raises(ValueError, match=r"\{shop\.pk\} is None"):
            use(Shop(None))
    assert total(Shop(1)) == "total"


# Metrics


def test_the_number_of_series_does_not_grow_with_the_keys(values):
    registry = CollectorRegistry()
    metrics.install(registry=registry, using=[])
    numbers_of_series = set()
    for number in range(10):
        rates(number)
        numbers_of_series.add(sum(len(family.samples) for family in registry.collect()))
    assert len(numbers_of_series) == 1
