"""Managers: list the locks, and release those of others."""

import asyncio
import os
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from django_redislock import (
    LockLost,
    LockManager,
    locks,
)
from django_redislock.engine import queries
from django_redislock.signals import lock_force_released
from tests.lock_tools import commands, listening, start, waiting
from tests.tools import Child, wait_until


@pytest.fixture
def forced():
    sent = []
    with listening(lock_force_released, lambda signal, **about: sent.append(about)):
        yield sent


def names(infos):
    return sorted(info.name for info in infos)


def test_active_lists_the_held_locks(manager, hold):
    held = [hold(name, manager) for name in "abc"]
    assert manager.count() == 3
    assert names(manager.active()) == names(manager.active(kind="mutex")) == ["a", "b", "c"]
    assert names(manager.active("a", kind="mutex")) == ["a"]
    assert names(manager.active(kind="semaphore")) == []
    for info in manager.active():
        assert info.token == manager.get(info.name).token
    held.pop().release()
    assert names(manager.active()) == ["a", "b"]
    assert locks.using(None).alias == locks.alias == "default"
    assert repr(locks.using("x")) == "<LockManager 'x'>"


def test_an_expired_hold_is_not_listed_although_another_lease_lasts(manager):
    long = manager.semaphore("a", 2, timeout=3600, auto_renewal=False)
    short = manager.semaphore("a", 2, timeout=0.3, auto_renewal=False)
    assert long.acquire()
    assert short.acquire()
    long.release()
    wait_until(lambda: manager.get("a") is None)
    assert manager.count() == manager.page().total == 0
    assert {event.outcome for event in manager.history("a", limit=2)} == {"released", "expired"}


def test_force_release_by_token_spares_another_holder(manager, forced, hold):
    first = hold("a", manager)
    old = first.token
    first.release()
    second = hold("a", manager)
    token = second.token
    for wrong in (5, "x" * 501):
        with pytest.raises((TypeError, ValueError), match="reason must"):
            manager.force_release("a", reason=wrong)
    assert manager.force_release("a", old) == 0
    assert forced == []
    assert second.owned()
    assert manager.force_release("a", token, by=7, reason="It hangs\x1b") == 1
    about = {"using": manager.alias, "name": "a", "tokens": (token,)}
    assert forced == [{"sender": LockManager, **about, "by": 7, "reason": "It hangs\x1b"}]
    [event] = manager.history("a", limit=1)
    assert (event.outcome, event.by, event.reason) == ("forced", "7", r"It hangs\x1b")
    with pytest.raises(LockLost):
        second.release()


# release_for(): one process acquires a lock, and another one releases it

ACQUIRE = """
from django_redislock import locks

def acquire():
    lock = locks.lock("import", timeout=60, auto_renewal=False)
    assert lock.acquire()
    return lock.token

say(acquire())
hear()
"""


def test_a_process_releases_the_lock_of_another_one(forced):
    with Child(ACQUIRE) as child:
        token = child.expect("")
        waiter = start(locks.lock("import").acquire)
        waiting(locks, "import", 1)
        assert locks.release_for("import", token) is True
        assert waiter.result(60)
        assert asyncio.run(locks.arelease_for("import", token)) is False
        child.tell()
        assert child.wait() == 0
    ended = [each.outcome for each in locks.history("import") if each.holder.pid == child.pid]
    assert ended == ["released"]
    assert not forced
    locks.force_release("import")


def test_a_chosen_token_releases_its_lock():
    lock = locks.lock("import", timeout=1.5)
    assert lock.acquire(token="import-42")
    assert locks.release_for("import", "import") is False
    assert locks.release_for("import", lock.token, at_least_for=60) is True
    assert locks.get("import").state == "cooldown"
    wait_until(lambda: lock.lost)  # by its renewal
    with pytest.raises(LockLost):
        lock.assert_held()
    locks.force_release("import")


# The history and its rates, the queue, and pages of locks


@pytest.fixture(autouse=True)
def empty(redis_server):
    redis_server.flushdb()


# Holds that ended


def test_a_release_is_recorded_with_its_hold(manager):
    with manager.lock("a", metadata={"why": "test"}) as lock:
        info = manager.get("a")
    [event] = manager.history()
    assert (event.name, event.kind, event.outcome) == ("a", "mutex", "released")
    assert event.fence_token == info.fence_token
    assert event.holder == info.holder
    assert event.metadata == {"why": "test"}
    assert event.acquired_at == info.acquired_at
    assert event.held == (event.at - event.acquired_at).total_seconds()
    assert abs(event.at - datetime.now(UTC)) < timedelta(seconds=5)
    assert (event.waited, event.weight) == (0, 1)
    assert lock.token is None


# Refusals


@pytest.mark.parametrize("right", ["hincrby", "xadd"])
def test_a_user_without_a_right_to_the_history_can_use_locks(own_locks, own_redis, right):
    own_redis.execute_command("ACL", "SETUSER", own_redis.acl_whoami(), f"-{right}")
    with own_locks.lock("a"):
        assert not own_locks.lock("a", blocking=False).acquire()
    assert own_locks.get("a") is None


def test_waits_are_recorded(manager):
    with manager.lock("a", timeout=60):
        assert not start(manager.lock("a", blocking_timeout=0.05).acquire).result(60)
        assert not start(manager.lock("a", blocking=False).acquire).result(60)
        waiter = start(lambda: manager.lock("a", timeout=60).acquire())
        waiting(manager, "a", 1)
        wait_until(lambda: manager.queue("a")[0].waited > 0.05)
    released, at_once, waited = manager.history("a")
    assert released.outcome == "released"
    assert (at_once.outcome, at_once.waited, at_once.fence_token) == ("refused", 0, None)
    assert waited.waited >= 0.05
    assert manager.history("a", 2) == manager.history(limit=2) == (released, at_once)
    assert sum(manager.rates().counts["refused"]) == 2
    assert waiter.result(60)
    info = manager.get("a")
    assert info.waited >= 0.05
    assert not info.is_stale, "with a short grant"
    assert info.first.since_renewal < 2
    manager.force_release("a")


# Rates and limits


def test_rates_are_counts_per_minute_of_the_last_hour(manager, redis_server):
    for _ in range(3):
        with manager.lock("a"):
            pass
    [key] = redis_server.scan_iter(match="*history:rates")
    minute = int(redis_server.time()[0] // 60)
    redis_server.hset(key, mapping={f"{minute - 61} acquired": 5, f"{minute} unknown": 7})
    rates = manager.rates()
    steps = {after - before for before, after in pairwise(rates.minutes)}
    assert steps == {timedelta(minutes=1)}
    assert rates.minutes[-1].second == 0
    assert {len(counts) for counts in rates.counts.values()} == {60}
    assert sum(map(sum, rates.counts.values())) == sum(rates.counts["acquired"][-2:]) == 3


# The queue, and pages


def test_the_queue_has_the_waiters_in_order(manager):
    with manager.lock("a"):
        waiters = []
        for number in range(3):
            lock = manager.lock("a", timeout=20, metadata={"number": number})
            waiters.append(start(lock.acquire))
            waiting(manager, "a", number + 1)
        queue = manager.queue("a")
        assert [waiter.metadata["number"] for waiter in queue] == [0, 1, 2]
        assert [waiter.since for waiter in queue] == sorted(waiter.since for waiter in queue)
        assert {(waiter.weight, waiter.timeout) for waiter in queue} == {(1, 20)}
        assert queue[0].holder.pid == os.getpid()
        assert queue[0].waited >= queue[2].waited >= 0
        assert len(manager.queue("a", limit=2)) == 2
    for _ in range(3):
        wait_until(lambda: manager.force_release("a"))
    assert manager.queue("a") == ()


@pytest.fixture
def forty(manager):
    held = [manager.lock(f"n{n}", timeout=60 + n, auto_renewal=False) for n in range(40)]
    assert all(lock.acquire() for lock in held)
    yield manager
    for lock in held:
        lock.release()


@pytest.mark.parametrize(("max_names", "max_rows"), [(2000, 200), (16, 7)])
def test_a_page_is_the_same_in_one_request_or_several(forty, max_names, max_rows, monkeypatch):
    monkeypatch.setattr(queries, "MAX_NAMES", max_names)
    monkeypatch.setattr(queries, "MAX_ROWS", max_rows)
    names = [f"n{n}" for n in range(40)]
    assert sorted(info.name for info in forty.active()) == sorted(names)
    assert forty.page(start=10, stop=13).total == 40
    for stop in (7, 40, 200, 201, 3000):
        for pattern, skip in ((None, 0), (None, 5), ("n*", 5)):
            page = forty.page(pattern, start=skip, stop=stop)
            assert [info.name for info in page.infos] == names[skip:stop]


def test_names_are_searched_in_several_requests(own_locks, own_redis, monkeypatch):
    own_redis.config_set("zset-max-ziplist-entries", 0)
    monkeypatch.setattr(queries, "MAX_NAMES", 5)
    held = [own_locks.lock(f"n{n}", timeout=600, auto_renewal=False) for n in range(30)]
    assert all(lock.acquire() for lock in held)
    with commands(own_redis) as called:
        page = own_locks.page("n1*")
    assert [info.name for info in page.infos] == ["n1", *(f"n{n}" for n in range(10, 20))]
    assert called["zscan"] > 1


async def test_details_of_some_locks(forty):
    found = forty.get_many(["n1", "n2", "free", "n1"])
    assert sorted(found) == ["n1", "n2"]
    assert found["n1"].fence_token == forty.get("n1").fence_token
    assert forty.get_many([]) == {}
    assert sorted(await forty.aget_many(["n1", "n2"])) == ["n1", "n2"]
    assert await forty.ahistory() == forty.history()
    assert await forty.arates() == forty.rates()
    assert await forty.aqueue("n1") == forty.queue("n1") == ()
    assert [info.name for info in (await forty.apage(stop=2)).infos] == ["n0", "n1"]


# Everywhere


def test_everywhere_has_each_database_once(alias_on, own_server, settings):
    alias_on(own_server.url, alias="other")
    settings.CACHES = {
        **settings.CACHES,
        "files": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "broken": {"BACKEND": "no.such.Cache"},
        "again": settings.CACHES["other"],
    }
    found = [each.alias for each in locks.everywhere()]
    assert found[0] == "default"
    assert "other" in found
    assert not {"files", "broken", "again"} & set(found)
    assert locks.using("other").everywhere()[0].alias == "other"
