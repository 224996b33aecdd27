"""locks.get_or_set(): one caller computes a value, and the others wait for it."""

import asyncio
import itertools
import sys
import threading
import time
import zlib
from contextlib import ExitStack
from contextvars import copy_context
from importlib.util import find_spec
from pathlib import Path

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.cache import caches
from django.core.management import call_command
from django.db import connection, transaction
from redis.exceptions import NoPermissionError

from django_redislock import LockError, LockNotAcquired, cache_miss, locks
from django_redislock.engine import protocol
from django_redislock.signals import lock_acquired, lock_refused
from django_redislock.testing import held_elsewhere, lose
from tests.lock_tools import (
    awaiting,
    free,
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

LOCAL = "django.core.cache.backends.locmem.LocMemCache"
DATABASE = "django.core.cache.backends.db.DatabaseCache"
FILES = "django.core.cache.backends.filebased.FileBasedCache"
MEMCACHED = ["PyMemcacheCache"]
if find_spec("pylibmc"):  # it has wheels for one version of Python
    MEMCACHED += ["PyLibMCCache"]

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
        self.runs = 0
        self.began = threading.Event()
        self.may_end = threading.Event()

    def __call__(self, *args):
        self.runs += 1
        number = self.runs
        self.began.set()
        assert self.may_end.wait(60)
        return number


def get(default, timeout=60, **options):
    return locks.get_or_set("rates", default, timeout, **{"cache": "values"} | options)


async def aget(default, **options):
    return await locks.aget_or_set("rates", default, 60, **{"cache": "values"} | options)


def fail():
    raise ZeroDivisionError("the bank is closed")


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


@pytest.mark.parametrize("value", [None, False, 0, "", [], ["a", "b", "c"], [[1], 2, 3]], ids=repr)
@pytest.mark.parametrize("stale", [0, 60])
def test_any_value_is_a_value(values, value, stale):
    assert get(lambda: value, stale=stale) == value
    assert get(refuse, stale=stale) == value


def test_a_value_is_stored_as_the_cache_itself_would(values):
    assert get({"EUR": 1}) == {"EUR": 1}
    assert values.get("rates") == {"EUR": 1}
    values.set("rates", "by others")
    assert get(refuse, stale=60) == "by others"


def test_it_works_with_the_caches_of_django(settings, tmp_path, db):
    settings.CACHES = {
        **settings.CACHES,
        "in_database": {"BACKEND": DATABASE, "LOCATION": "values"},
        "in_files": {"BACKEND": FILES, "LOCATION": str(tmp_path)},
    }
    call_command("createcachetable")
    for alias in ("default", "django_redis", "in_database", "in_files"):
        assert get(lambda: None, 0.5 + 60, cache=alias, stale=60) is None
        assert get(refuse, cache=alias) is None
        caches[alias].delete("rates")
        assert get(lambda: 1, cache=alias) == 1
        assert caches[alias].get("rates") == 1
        caches[alias].delete("rates")


def test_a_serializer_for_json_can_store_a_value_with_an_expiry(settings):
    options = {"SERIALIZER": "django_redis.serializers.json.JSONSerializer"}
    settings.CACHES = {
        **settings.CACHES,
        "in_json": {**settings.CACHES["django_redis"], "OPTIONS": options},
    }
    assert get(lambda: {"EUR": 1}, cache="in_json", stale=60) == {"EUR": 1}
    assert get(refuse, cache="in_json", stale=60) == {"EUR": 1}
    caches["in_json"].delete("rates")


def test_versions_of_a_key_are_different_values(values):
    assert get(lambda: "old") == "old"
    assert get(lambda: "new", version=2) == "new"
    assert get(refuse) == get(refuse, version=1) == "old"
    slow = Slow()
    other = start(lambda: get(slow, version=3))
    assert slow.began.wait(60)
    assert get(lambda: "newer", version=4) == "newer"  # does not wait for another version
    slow.may_end.set()
    assert other.result() == 1


# A miss


def test_one_computes_and_the_others_get_its_value(values, arrived):
    slow = Slow()
    callers = [start(get, slow) for _ in range(10)]
    arrived(9)
    slow.may_end.set()
    assert [each.result() for each in callers] == [1] * 10
    free(locks, LOCK)


def test_no_waiter_waits_until_another_one_has_read_the_value(values, arrived):
    slow = Slow()
    callers = [start(get, slow) for _ in range(10)]
    arrived(9)
    readers = [start(locks.read_lock(LOCK).acquire) for _ in range(3)]
    waiting(locks, LOCK, 4)
    slow.may_end.set()
    assert all(each.result() for each in readers)  # they keep the lock
    assert [each.result() for each in callers] == [1] * 10


def test_an_exception_reaches_its_caller_and_the_next_waiter_computes(values, arrived):
    slow = Slow()

    def compute():
        if slow() == 1:
            raise ZeroDivisionError
        return "computed"

    callers = [start(get, compute) for _ in range(5)]
    arrived(4)
    slow.may_end.set()
    results = [each.exception() or each.result() for each in callers]
    assert sorted(map(repr, results)) == ["'computed'"] * 4 + ["ZeroDivisionError()"]
    assert slow.runs == 2


def test_waiters_do_not_hold_the_lock_one_after_another_after_a_failed_computation(
    values, arrived
):
    first, second = Slow(), Slow()
    acquired = []

    def compute():
        if not first.began.is_set():
            first()
            raise ZeroDivisionError
        return second()

    with listening(lock_acquired, lambda **about: acquired.append(about["name"])):
        callers = [start(get, compute) for _ in range(20)]
        arrived(19)
        first.may_end.set()
        assert second.began.wait(60)
        waiting(locks, LOCK, 1)  # one of the others
        second.may_end.set()
        results = [each.exception() or each.result() for each in callers]
    assert results.count(1) == 19
    assert acquired.count(LOCK) < 15  # it is 4 if no thread is late


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_exception_of_the_computation_releases_the_lock(values, error):
    def fail():
        raise error

    with pytest.raises(error):
        get(fail)
    assert locks.get(LOCK) is None
    assert get(lambda: 1) == 1


@pytest.mark.filterwarnings("ignore:coroutine 'Miss.get' was never awaited:RuntimeWarning")
def test_an_interrupt_before_any_line_releases_the_lock(values):
    def step(line):
        if not interrupted_before(line):
            return False
        assert locks.get(LOCK) is None
        values.clear()
        assert get(lambda: "again") == "again"
        values.clear()
        return True

    lines = itertools.count(1)
    while copy_context().run(step, next(lines)):
        pass
    assert next(lines) > 20


def interrupted_before(number):
    """Interrupt a call before one of the lines that it runs in the module. Return whether it runs
    so many."""
    lines = 0

    def trace(frame, event, about):
        nonlocal lines
        if frame.f_code.co_filename != cache_miss.__file__:
            return None
        lines += event == "line"
        if lines == number:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        get(lambda: 1, stale=60)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_a_value_that_cannot_be_stored_is_an_error_and_releases_the_lock(values):
    with pytest.raises((TypeError, AttributeError)):
        get(threading.Lock)
    assert locks.get(LOCK) is None


def test_a_wait_can_be_limited(values):
    with (
        held_elsewhere(locks.write_lock(LOCK)),
        pytest.raises(LockNotAcquired, match=r"'rates' was not computed within 0\.05 s"),
    ):
        get(refuse, blocking_timeout=0.05)


def test_callers_behind_one_that_gives_up_go_on_waiting(values, arrived):
    slow = Slow()
    computing = start(get, slow)
    assert slow.began.wait(60)
    impatient = start(lambda: get(refuse, blocking_timeout=0.2))
    arrived(1)
    patient = start(get, refuse)
    assert isinstance(impatient.exception(), LockNotAcquired)
    waiting(locks, LOCK, 1)
    slow.may_end.set()
    assert computing.result() == patient.result() == 1


def test_a_computation_can_take_longer_than_its_lease(values, arrived):
    slow = Slow()
    callers = [start(lambda: get(slow, lease=1.5)) for _ in range(3)]
    arrived(2)
    renewed(locks, LOCK, times=3)
    slow.may_end.set()
    assert [each.result() for each in callers] == [1, 1, 1]


def test_the_lease_is_that_of_the_lock(values):
    def compute():
        return locks.get(LOCK).timeout

    assert get(compute, lease=7) == 7
    assert values.get("rates") == 7


def test_a_waiter_computes_after_the_computing_process_has_died(values):
    held = locks.write_lock(LOCK, timeout=0.2, auto_renewal=False)
    assert held.acquire()
    with within(10):
        assert start(get, lambda: "alive").result() == "alive"


# Recursion


def test_a_computation_that_asks_for_its_own_value_is_an_error(values):
    with pytest.raises(LockError, match="'rates' asks for its own value"):
        get(lambda: get(refuse))
    assert get(lambda: 1) == 1


def test_a_key_that_looks_like_the_version_of_another_is_another_value(values):
    def compute():
        return locks.get_or_set("2:rates", lambda: "inner", 60, cache="values")

    assert get(compute, version=2) == "inner"


async def test_recursion_is_found_through_sync_to_async(values):
    async def compute():
        return await sync_to_async(get)(refuse)

    with pytest.raises(LockError, match="asks for its own value"):
        await aget(compute)


async def test_a_task_that_outlives_the_computation_can_ask_for_the_value(values):
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


def test_a_computation_can_ask_for_other_values(values):
    def outer():
        return get(lambda: 1, version=2) + locks.get_or_set("inner", lambda: 2, 60, cache="values")

    assert get(outer) == 3


def stop():
    raise StopIteration("the end")


def test_an_iterator_that_is_at_its_end_is_an_error(values):
    with pytest.raises(RuntimeError, match="StopIteration"):
        get(stop)
    assert locks.get(LOCK) is None


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
    moving_time[0] = 11
    slow = Slow()
    refreshing = start(lambda: get(slow, 10, stale=60))
    assert slow.began.wait(60)
    assert get(refuse, 10, stale=60) == "old"
    slow.may_end.set()
    assert refreshing.result() == 1
    assert get(refuse, 10, stale=60) == 1


def test_a_value_is_stale_for_a_limited_time(values, moving_time):
    get(lambda: "old", 10, stale=60)
    moving_time[0] = 71
    assert get(lambda: "new", 10, stale=60) == "new"


def test_a_caller_without_stale_never_gets_an_expired_value(values, moving_time):
    get(lambda: "old", 10, stale=60)
    moving_time[0] = 11
    assert get(lambda: "new", 10) == "new"


def test_a_caller_without_stale_waits_for_the_next_value(values, moving_time):
    get(lambda: "old", 10, stale=60)
    moving_time[0] = 11
    slow = Slow()
    refreshing = start(lambda: get(slow, 10, stale=60))
    assert slow.began.wait(60)
    without = start(lambda: get(refuse, 10))
    waiting(locks, LOCK, 1)
    slow.may_end.set()
    assert without.result() == refreshing.result() == 1


def test_an_exception_while_refreshing_keeps_the_stale_value(values, moving_time):
    get(lambda: "old", 10, stale=60)
    moving_time[0] = 11
    with pytest.raises(ZeroDivisionError):
        get(fail, 10, stale=60)
    with held_elsewhere(locks.write_lock(LOCK)):
        assert get(refuse, 10, stale=60) == "old"


def test_a_fraction_of_a_second_is_kept(values, moving_time):
    get(lambda: "old", 0.5)
    assert get(refuse, 0.5) == "old"
    moving_time[0] = 0.6
    assert get(lambda: "new", 0.5) == "new"


def test_a_value_without_a_timeout_never_expires(values, moving_time):
    get(lambda: "old", None)
    moving_time[0] = 1e9
    assert get(refuse, None) == "old"


# The lock is lost, and Redis is away


@pytest.mark.parametrize("take", [lose, locks.force_release], ids=["noticed", "not noticed"])
def test_a_value_computed_after_the_lock_was_lost_is_returned_but_not_stored(values, take):
    def compute():
        take(LOCK)
        return "late"

    assert get(compute) == "late"
    assert values.get("rates") is None


def test_a_new_holder_keeps_the_value_of_the_old_one_out(values):
    def compute():
        locks.force_release(LOCK)
        assert start(get, lambda: "new").result() == "new"
        return "late"

    assert get(compute) == "late"
    assert get(refuse) == "new"


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
    with pytest.raises(LockError, match="asks for its own value"):
        own_locks.get_or_set(
            "own", lambda: own_locks.get_or_set("own", refuse, 60, cache=alias), 60, cache=alias
        )


@pytest.mark.parametrize("alias", ["values", "own"])
def test_if_redis_goes_away_during_the_computation_waiters_compute(
    values, own_locks, own_server, alias
):
    slow = Slow()
    callers = [
        start(lambda: own_locks.get_or_set("rates", slow, 60, cache=alias)) for _ in range(3)
    ]
    waiting(own_locks, f"cache:{alias}:rates", 1)
    own_server.stop()
    wait_until(lambda: slow.runs == 3)
    slow.may_end.set()
    assert sorted(each.result() for each in callers) == [1, 2, 3]


def test_if_only_the_cache_goes_away_waiters_compute_at_the_same_time(
    alias_on, own_server, arrived
):
    alias_on(own_server.url, alias="values")
    slow = Slow()
    callers = [start(get, slow) for _ in range(4)]
    arrived(3)
    own_server.stop()
    slow.may_end.set()
    assert sorted(each.result() for each in callers) == [1, 2, 3, 4]


@pytest.mark.parametrize("alias", ["values", "own"])
@pytest.mark.parametrize("hangs", ["before", "during"])
def test_a_redis_that_hangs_delays_a_value_for_a_bounded_time(
    values, alias_on, own_server, alias, hangs
):
    own_locks = alias_on(own_server.url, socket_timeout=1)
    with ExitStack() as stack:

        def compute():
            if hangs == "during":
                stack.enter_context(hanging(own_server))
            return "computed"

        if hangs == "before":
            stack.enter_context(hanging(own_server))
        with within(30):
            assert own_locks.get_or_set("rates", compute, 60, cache=alias) == "computed"


@pytest.mark.parametrize("method", ["get_or_set", "aget_or_set"])
@pytest.mark.parametrize("hangs", ["before", "during"])
def test_a_redis_that_hangs_hardly_delays_a_caller_with_a_stale_value(
    values, alias_on, own_server, moving_time, monkeypatch, method, hangs
):
    """Without a stale value, it would wait for a reply for a minute."""
    monkeypatch.setattr(protocol, "REPLY_TIMEOUT_SECONDS", 60)
    own_locks = alias_on(own_server.url, socket_timeout=60)
    own_locks.get_or_set("rates", lambda: "old", 10, cache="values", stale=60)
    moving_time[0] = 11
    with ExitStack() as stack:

        def compute():
            stack.enter_context(hanging(own_server))
            return "new"

        ask = getattr(own_locks, method)
        ask = async_to_sync(ask) if method == "aget_or_set" else ask
        if hangs == "before":
            compute()
        with within(30):
            found = ask("rates", compute, 10, cache="values", stale=60)
    assert found == ("old" if hangs == "before" else "new")


def test_an_error_of_the_computation_is_not_taken_for_an_outage(values):
    runs = []

    def compute():
        runs.append(1)
        raise ConnectionError("the bank is closed")

    with pytest.raises(ConnectionError, match="the bank"):
        get(compute)
    assert len(runs) == 1


def test_an_error_of_the_cache_is_not_taken_for_an_outage_that_is_being_handled(values):
    values.set("rates", 1)
    file = next(Path(values._dir).iterdir())
    file.write_bytes(file.read_bytes()[:-5])
    try:
        raise ConnectionError
    except ConnectionError:
        with pytest.raises(zlib.error):
            get(refuse)


def test_without_redis_a_value_is_stored_although_callers_keep_coming(
    values, own_locks, own_server
):
    own_server.stop()
    slow, late = Slow(), Slow()
    computing = start(lambda: own_locks.get_or_set("rates", slow, 60, cache="values"))
    assert slow.began.wait(60)
    also = start(lambda: own_locks.get_or_set("rates", late, 60, cache="values"))
    assert late.began.wait(60)
    slow.may_end.set()
    assert computing.result(60) == 1
    assert values.get("rates") == 1
    late.may_end.set()
    assert also.result(60) == 1


def test_without_redis_a_failed_computation_keeps_no_other_from_storing(
    values, own_locks, own_server
):
    own_server.stop()
    slow = Slow()
    computing = start(lambda: own_locks.get_or_set("rates", slow, 60, cache="values"))
    assert slow.began.wait(60)
    with pytest.raises(ZeroDivisionError):
        own_locks.get_or_set("rates", fail, 60, cache="values")
    slow.may_end.set()
    assert computing.result(60) == 1
    assert values.get("rates") == 1


def test_without_redis_a_stale_value_is_returned(values, own_locks, own_server, moving_time):
    own_locks.get_or_set("rates", lambda: "old", 10, cache="values", stale=60)
    moving_time[0] = 11
    own_server.stop()
    assert own_locks.get_or_set("rates", refuse, 10, cache="values", stale=60) == "old"


def test_missing_rights_are_an_error(values, own_locks, own_redis, own_server):
    own_redis.acl_setuser(own_redis.acl_whoami(), enabled=True, commands=["-eval", "-evalsha"])
    with pytest.raises(NoPermissionError):
        own_locks.get_or_set("rates", refuse, 60, cache="values")


def test_a_broken_transaction_keeps_no_lock(settings, db):
    in_database = {"BACKEND": DATABASE, "LOCATION": "values"}
    settings.CACHES = {**settings.CACHES, "in_database": in_database}
    call_command("createcachetable")

    def break_transaction():
        connection.set_rollback(True)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), transaction.atomic():
        locks.get_or_set("broken", break_transaction, 60, cache="in_database")
    assert locks.get("cache:in_database:broken") is None


async def test_a_task_that_is_cancelled_twice_keeps_no_lock(values):
    began, may_end = asyncio.Event(), asyncio.Event()

    async def slow():
        began.set()
        await may_end.wait()

    task = asyncio.create_task(aget(slow))
    await began.wait()
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.to_thread(free, locks, LOCK, timeout=20)


# Async code


async def test_coroutines_compute_once(values, arrived):
    runs = []
    may_end = asyncio.Event()

    async def compute():
        runs.append(1)
        await may_end.wait()
        return "computed"

    callers = [asyncio.create_task(aget(compute)) for _ in range(20)]
    await asyncio.to_thread(arrived, 19)
    may_end.set()
    assert await asyncio.gather(*callers) == ["computed"] * 20
    assert len(runs) == 1
    assert await aget(refuse) == get(refuse) == "computed"


async def test_a_cancelled_computation_is_taken_over_by_a_waiter(values):
    began = asyncio.Event()

    async def hang():
        began.set()
        await asyncio.Event().wait()

    first = asyncio.create_task(aget(hang))
    await began.wait()
    second = asyncio.create_task(aget(lambda: "computed"))
    await awaiting(locks, LOCK, 1)
    first.cancel()
    assert await second == "computed"
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_coroutines_behind_a_cancelled_waiter_go_on_waiting(values, arrived):
    slow = Slow()
    thread = start(get, slow)
    await asyncio.to_thread(slow.began.wait, 60)
    first = asyncio.create_task(aget(refuse))
    await asyncio.to_thread(arrived, 1)
    second = asyncio.create_task(aget(refuse))
    third = asyncio.create_task(aget(refuse, blocking_timeout=0.05))
    await asyncio.to_thread(arrived, 3)
    with pytest.raises(LockNotAcquired):
        await third
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    slow.may_end.set()
    assert await second == thread.result() == 1


async def test_sync_code_in_an_event_loop_computes_instead_of_waiting(values, caplog):
    with held_elsewhere(locks.write_lock(LOCK)):
        assert get(lambda: "computed", blocking_timeout=60) == "computed"
    assert "without a lock: key='rates' error=A wait would block the running event loop" in (
        caplog.text
    )
    assert get(refuse) == "computed"


# Memcached


@pytest.fixture
def memcached_server():
    pytest.importorskip("pymemcache")
    with memcached() as server:
        yield server


@pytest.fixture(params=MEMCACHED)
def in_memcached(request, memcached_server, settings):
    backend = f"django.core.cache.backends.memcached.{request.param}"
    entry = {"BACKEND": backend, "LOCATION": memcached_server.location}
    settings.CACHES = {**settings.CACHES, "values": entry}
    yield caches["values"]
    caches["values"].close()


@pytest.mark.parametrize("key", ["rates", "k" * 240])
@pytest.mark.parametrize("stale", [0, 60])
def test_memcached_can_store_the_values(in_memcached, key, stale):
    values = locks.cached(lambda value: key, timeout=60, stale=stale, cache="values")(Slow())
    values.__wrapped__.may_end.set()
    assert values("a") == values("a") == 1
    values.invalidate("a")
    assert values("a") == values("a") == 2


def test_none_is_a_value_in_memcached(in_memcached):
    assert get(lambda: None) is None
    assert get(refuse) is None


def test_without_memcached_the_value_is_computed(in_memcached, memcached_server):
    def compute():
        memcached_server.kill()
        return "computed"

    assert get(compute) == "computed"
    for number in range(5):  # the client tries again, and then takes the server for dead
        assert get(lambda: number) == number  # noqa: B023


def test_a_value_that_is_too_large_for_memcached_is_returned(in_memcached):
    large = "x" * 2_000_000
    assert get(lambda: large) == large
    assert get(lambda: "small") == "small"
    assert get(refuse) == "small"


# A cache in the memory of each process

LOCAL_VALUE = """
from django.conf import settings
from django_redislock import locks
settings.CACHES["local"] = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
say(locks.get_or_set("rates", lambda: say("computes") or hear(), 60, cache="local"))
hear()
"""


def test_a_process_does_not_wait_for_values_that_it_cannot_see(settings):
    settings.CACHES = {**settings.CACHES, "local": {"BACKEND": LOCAL}}
    with Child(LOCAL_VALUE) as child:
        child.expect("computes")
        assert get(lambda: "own", cache="local") == "own"
        child.tell("theirs")
        child.expect("theirs")
    caches["local"].clear()


def test_threads_and_coroutines_share_the_values_of_their_process(settings):
    settings.CACHES = {**settings.CACHES, "local": {"BACKEND": LOCAL}}
    slow = Slow()
    thread = start(lambda: get(slow, cache="local"))
    assert slow.began.wait(60)

    async def ask():
        task = asyncio.create_task(aget(refuse, cache="local"))
        await asyncio.to_thread(
            lambda: wait_until(lambda: any(each.waiters for each in locks.active()))
        )
        slow.may_end.set()
        return await task

    assert asyncio.run(ask()) == thread.result() == 1
    caches["local"].clear()


# Bad input


async def compute_async():
    return 1


def generate():
    yield 1


@pytest.mark.parametrize(
    ("default", "options", "error", "text"),
    [
        (1, {"timeout": 0}, ValueError, "timeout must be positive, or None .* got 0"),
        (1, {"timeout": "1"}, TypeError, "timeout must be a number of seconds .* got '1'"),
        (1, {"stale": -1}, ValueError, "stale must be from 0 .* got -1"),
        (1, {"timeout": None, "stale": 5}, ValueError, "stale=5 cannot be used with timeout=None"),
        (1, {"lease": 0}, ValueError, "lease must be from 10 ms"),
        (1, {"blocking_timeout": -1}, ValueError, "blocking_timeout must not be negative"),
        (1, {"ttl": 5}, TypeError, "unexpected keyword argument 'ttl'"),
        (compute_async, {}, TypeError, "'rates' returned a coroutine"),
        (generate, {}, TypeError, "'rates' returned a generator"),
    ],
)
def test_bad_input_is_named(values, default, options, error, text):
    with pytest.raises(error, match=text):
        get(default, **options)
    assert locks.get(LOCK) is None
