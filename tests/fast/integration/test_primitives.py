"""Semaphores, read-write locks, re-entrancy and cooldown."""

import asyncio

import pytest

from django_redislock import LockError, LockLost, locks
from django_redislock.engine import protocol
from django_redislock.engine.runners import run
from tests.lock_tools import free, start
from tests.round_trips import RoundTrips


def test_a_reader_that_acquires_the_write_lock_gets_an_error():
    with locks.read_lock("rw"), pytest.raises(LockError, match="by this thread"):
        locks.write_lock("rw").acquire()
    with locks.write_lock("rw"), pytest.raises(LockError, match="by this thread"):
        locks.read_lock("rw").acquire()


def test_one_name_is_of_one_kind_while_it_is_held():
    with locks.lock("x"), pytest.raises(LockError, match=r"mutex.*semaphore"):
        locks.semaphore("x", 3).acquire()
    with locks.semaphore("x", 3), pytest.raises(LockError, match=r"semaphore.*mutex"):
        locks.lock("x").acquire()


def test_reentry_sends_no_request():
    def nested(depth):
        with locks.lock("a", reentrant=True) as lock:
            assert lock.owned()
            return lock.fence_token if depth == 0 else nested(depth - 1)

    with locks.lock("a", reentrant=True) as lock:
        with RoundTrips(of_this_thread=True) as made:
            inner = locks.lock("a", reentrant=True)
            assert inner.acquire()
            assert lock.acquire()
            lock.release()
            inner.release()
        assert made.count == 0
        assert nested(3) == lock.fence_token
        assert lock.owned()
        assert start(locks.lock("a", reentrant=True, blocking=False).acquire).result(60) is False
    free(locks, "a")


def test_a_holder_enters_what_its_lock_includes():
    with locks.write_lock("rw") as writer, locks.read_lock("rw", reentrant=True) as reader:
        assert reader.fence_token == writer.fence_token
    with locks.lock("a") as one, locks.lock_many(["a", "b"], reentrant=True) as many:
        assert many.fence_tokens["a"] == one.fence_token
    with locks.lock_many(["a", "b"]), locks.lock("b", reentrant=True) as inner:
        assert inner.owned()
    with locks.semaphore("s", 3, weight=2), locks.semaphore("s", 3, reentrant=True):
        assert len(locks.get("s").holders) == 1


def test_a_holder_does_not_enter_more_than_it_holds():
    with locks.read_lock("rw"), pytest.raises(LockError, match="wait for itself"):
        locks.write_lock("rw", reentrant=True).acquire()
    with locks.semaphore("s", 3), pytest.raises(LockError, match="wait for itself"):
        locks.semaphore("s", 3, weight=3, reentrant=True).acquire()


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


def test_a_renewal_that_comes_late_does_not_prolong_a_cooldown():
    lock = locks.lock("tick", timeout=30, at_least_for=1)
    assert lock.acquire()
    holding = locks.get("tick").first
    lock.release()
    server = locks._server()
    keys = server.keys.of("tick")
    assert run(server.client, protocol.renew(keys, holding.token, 30, "renew")) == 0
    assert locks.get("tick").ttl <= 1
    assert locks.force_release("tick") == 1


def test_decorators_keep_limit_and_weight():
    @locks.semaphore("s:{name}", 3, weight=2)
    def use(name):
        info = locks.get(f"s:{name}")
        return info.capacity, info.weight

    assert use("x") == (3, 2)


def test_the_holder_cannot_shorten_the_cooldown():
    lock = locks.lock("tick", timeout=1, at_least_for=100)
    lock.acquire()
    lock.reacquire()
    lock.extend(1, replace_ttl=True)
    assert locks.get("tick").ttl > 98
    locks.force_release("tick")
    with pytest.raises(LockLost):
        lock.reacquire()


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
