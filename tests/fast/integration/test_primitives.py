"""Semaphores, read-write locks, re-entrancy and cooldown."""

import asyncio

import pytest

from django_redislock import LockError, LockLost, LockNotOwnedError, locks
from tests.lock_tools import commands, free, start


def test_a_semaphore_lets_in_as_many_as_its_limit(manager):
    permits = [manager.semaphore("s", 3, blocking=False) for _ in range(4)]
    assert [permit.acquire() for permit in permits] == [True, True, True, False]
    info = manager.get("s")
    assert (info.kind, info.capacity, len(info.holders)) == ("semaphore", 3, 3)
    assert len({holding.fence_token for holding in info.holders}) == 3
    permits[1].release()
    assert permits[3].acquire()
    for permit in (permits[0], permits[2], permits[3]):
        permit.release()


@pytest.mark.parametrize(
    ("limit", "weight", "error"),
    [
        (0, 1, ValueError),
        (-1, 1, ValueError),
        (1.5, 1, TypeError),
        (True, 1, TypeError),
        ("3", 1, TypeError),
        (10**9, 1, ValueError),
        (3, 0, ValueError),
        (3, 4, ValueError),
        (3, 1.0, TypeError),
    ],
)
def test_what_can_not_be_a_limit_or_a_weight(redis_server, limit, weight, error):
    argument = "weight" if limit == 3 else "limit"
    with commands(redis_server) as called, pytest.raises(error, match=argument):
        locks.semaphore("s", limit, weight=weight)
    assert not called


def test_a_reader_that_would_write_is_told_that_it_waits_for_itself():
    with locks.read_lock("rw"), pytest.raises(LockError, match="by this thread"):
        locks.write_lock("rw").acquire()
    with locks.write_lock("rw"), pytest.raises(LockError, match="by this thread"):
        locks.read_lock("rw").acquire()


def test_one_name_is_of_one_kind_while_it_is_held():
    with locks.lock("x"), pytest.raises(LockError, match=r"mutex.*semaphore"):
        locks.semaphore("x", 3).acquire()
    with locks.semaphore("x", 3), pytest.raises(LockError, match=r"semaphore.*mutex"):
        locks.lock("x").acquire()


def test_who_holds_a_reentrant_lock_enters_again_without_a_word_to_redis(redis_server):
    def nested(depth):
        with locks.lock("a", reentrant=True) as lock:
            assert lock.owned()
            return lock.fence_token if depth == 0 else nested(depth - 1)

    with locks.lock("a", reentrant=True) as lock:
        with commands(redis_server) as called:
            inner = locks.lock("a", reentrant=True)
            assert inner.acquire()
            assert lock.acquire()
            lock.release()
            inner.release()
        assert not called
        assert nested(3) == lock.fence_token
        assert lock.owned()
        assert start(locks.lock("a", reentrant=True, blocking=False).acquire).result(60) is False
    free(locks, "a")


async def test_reentrancy_goes_by_task_in_async():
    async def acquire_in_another_task():
        return await locks.lock("a", reentrant=True, blocking=False).aacquire()

    async with locks.lock("a", reentrant=True) as lock:
        async with locks.lock("a", reentrant=True):
            pass
        assert await asyncio.create_task(acquire_in_another_task()) is False
        assert await lock.aowned()
    assert await locks.aget("a") is None


def test_a_lock_stays_taken_for_its_least_time_however_soon_it_is_released():
    with locks.lock("tick", timeout=0.2, at_least_for=1) as lock:
        acquired = locks.get("tick").acquired_at
    assert lock.token is None
    info = locks.get("tick")
    assert info.state == "cooldown"
    assert (info.expires_at - acquired).total_seconds() == 1
    assert not locks.lock("tick", blocking=False).acquire()
    with locks.lock("tick", blocking_timeout=10):
        began = locks.get("tick").acquired_at
    assert (began - acquired).total_seconds() >= 1


def test_a_renewal_that_comes_late_does_not_prolong_a_cooldown():
    lock = locks.lock("tick", timeout=30, at_least_for=1)
    assert lock.acquire()
    holding = locks.get("tick").first
    lock.release()
    server = locks._server()
    from django_redislock.engine import flows
    from django_redislock.engine.drivers import run

    keys = server.keys.of("tick")
    assert run(server.client, flows.renew(keys, holding.token, 30, "renew")) == 0
    assert locks.get("tick").ttl <= 1
    assert locks.force_release("tick") == 1


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "1", True, None])
def test_what_can_not_be_a_least_time(value):
    with pytest.raises((ValueError, TypeError), match="at_least_for"):
        locks.lock("a", at_least_for=value)


async def test_every_kind_works_in_async():
    async with locks.semaphore("s", 2), locks.semaphore("s", 2):
        assert not await locks.semaphore("s", 2, blocking=False).aacquire()
    async with locks.read_lock("rw"):
        async with locks.read_lock("rw"):
            pass
        assert not await locks.write_lock("rw", blocking=False).aacquire()
    async with locks.write_lock("rw"):
        pass


def test_decorators_keep_limit_and_weight():
    @locks.semaphore("s:{name}", 3, weight=2)
    def use(name):
        info = locks.get(f"s:{name}")
        return info.capacity, info.weight

    assert use("x") == (3, 2)


def test_its_holder_can_not_cut_short_the_least_time():
    with locks.lock("tick", timeout=1, at_least_for=100) as lock:
        lock.reacquire()
        lock.extend(1, replace_ttl=True)
        assert locks.get("tick").ttl > 98
        locks.force_release("tick")
        with pytest.raises(LockLost):
            lock.reacquire()
        lock.acquire()
    assert locks.force_release("tick") == 1


def test_of_two_permits_the_one_that_is_left_is_known():
    first, second = locks.semaphore("a", 2), locks.semaphore("a", 2)
    assert first.acquire()
    assert second.acquire()
    second.release()
    locks.assert_held("a")
    assert second.acquire()
    with pytest.raises(LockError, match="already held by this"):
        locks.semaphore("a", 2).acquire()
    first.release()
    locks.assert_held("a")
    second.release()
    with pytest.raises(LockNotOwnedError):
        locks.assert_held("a")


async def test_a_generator_may_be_closed_by_another_task():
    async def read():
        async with locks.lock("a"):
            yield

    generator = read()
    await anext(generator)
    await asyncio.create_task(generator.aclose())
    assert await locks.aget("a") is None
