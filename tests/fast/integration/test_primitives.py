"""Semaphores, read-write locks, re-entrancy and cooldown."""

import asyncio

import pytest

from django_redislock import LockError, locks
from tests.lock_tools import start
from tests.round_trips import RoundTrips


def test_a_holder_that_would_wait_for_itself_gets_an_error():
    with locks.read_lock("rw"), pytest.raises(LockError, match="by this thread"):
        locks.write_lock("rw").acquire()
    with locks.write_lock("rw"), pytest.raises(LockError, match="by this thread"):
        locks.read_lock("rw").acquire()
    with locks.read_lock("rw"), pytest.raises(LockError, match="wait for itself"):
        locks.write_lock("rw", reentrant=True).acquire()
    with locks.semaphore("s", 3), pytest.raises(LockError, match="wait for itself"):
        locks.semaphore("s", 3, weight=3, reentrant=True).acquire()


def test_one_name_is_of_one_kind_while_it_is_held():
    with locks.lock("x"), pytest.raises(LockError, match=r"mutex.*semaphore"):
        locks.semaphore("x", 3).acquire()
    with locks.semaphore("x", 3), pytest.raises(LockError, match=r"semaphore.*mutex"):
        locks.lock("x").acquire()


def test_reentry_sends_no_request():
    with locks.lock("a", reentrant=True) as lock:
        inner = locks.lock("a", reentrant=True)
        with RoundTrips(of_this_thread=True) as made:
            assert inner.acquire()
            assert lock.acquire()
            lock.release()
            inner.release()
        assert made.count == 0
        assert inner.token is None
        assert lock.owned()
        assert start(locks.lock("a", reentrant=True, blocking=False).acquire).result(60) is False
    assert locks.get("a") is None


def test_a_holder_enters_what_its_lock_includes():
    with locks.write_lock("rw") as writer, locks.read_lock("rw", reentrant=True) as reader:
        assert reader.fence_token == writer.fence_token
    with locks.lock("a") as one, locks.lock_many(["a", "b"], reentrant=True) as many:
        assert many.fence_tokens["a"] == one.fence_token
    with locks.lock_many(["a", "b"]), locks.lock("b", reentrant=True) as inner:
        assert inner.owned()
    with locks.semaphore("s", 3, weight=2), locks.semaphore("s", 3, reentrant=True):
        assert len(locks.get("s").holders) == 1


async def test_reentrancy_goes_by_task_in_async():
    async def acquire_in_another_task():
        return await locks.lock("a", reentrant=True, blocking=False).aacquire()

    async with locks.lock("a", reentrant=True) as lock:
        async with locks.lock("a", reentrant=True):
            pass
        assert await asyncio.create_task(acquire_in_another_task()) is False
        assert await lock.aowned()
    assert await locks.aget("a") is None


def test_a_lock_released_early_stays_held_during_its_cooldown():
    with locks.lock("tick", timeout=0.5, at_least_for=1.5) as lock:
        acquired = locks.get("tick").acquired_at
    assert lock.token is None
    info = locks.get("tick")
    assert info.state == "cooldown"
    assert (info.expires_at - acquired).total_seconds() == 1.5
    assert not locks.lock("tick", blocking=False).acquire()
    with locks.lock("tick", blocking_timeout=10):
        began = locks.get("tick").acquired_at
    assert (began - acquired).total_seconds() >= 1.5


async def test_a_generator_may_be_closed_after_the_end_of_its_task():
    async def read():
        async with locks.lock("a"):
            yield

    async def begin(generator):
        await anext(generator)

    generator = read()
    await asyncio.create_task(begin(generator))
    assert await locks.aget("a")
    await asyncio.create_task(generator.aclose())
    assert await locks.aget("a") is None
