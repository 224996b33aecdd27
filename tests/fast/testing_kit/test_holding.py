"""held_elsewhere() holds a lock as another process would. lose() makes a holder lose its lock."""

import asyncio
import threading

import pytest
from redis.asyncio import Redis

from django_redislock import AsyncLock, Lock, LockError, LockLost, LockNotOwnedError, locks
from django_redislock.testing import alose, held_elsewhere, lose
from tests.lock_tools import renewed

NAME = "tests:kit"


def test_the_lock_is_held_by_another_until_the_block_ends() -> None:
    with held_elsewhere(NAME, metadata={"by": "cron"}):
        assert locks.get(NAME).metadata == {"by": "cron"}
        with pytest.raises(LockError, match=f"'{NAME}' cannot be held elsewhere"):
            held_elsewhere(NAME).__enter__()
        with pytest.raises(LockNotOwnedError):
            locks.assert_held(NAME)
        assert not locks.lock(NAME, reentrant=True).acquire(blocking=False)
        with pytest.raises(LockNotOwnedError):
            locks.lock(NAME).release()
        assert locks.get(NAME)
    assert locks.get(NAME) is None
    with pytest.raises(ZeroDivisionError), held_elsewhere(NAME, using="django_redis"):
        raise ZeroDivisionError(locks.using("django_redis").get(NAME).token)
    assert locks.get(NAME) is None


def test_a_lock_of_any_kind_can_be_held(redis_server) -> None:
    with held_elsewhere(locks.lock(NAME, timeout=1.5)):
        renewed(locks, NAME)
    with held_elsewhere(locks.semaphore(NAME, 3, weight=2)):
        assert locks.semaphore(NAME, 3).acquire(blocking=False, token="one")
        assert not locks.semaphore(NAME, 3, weight=2).acquire(blocking=False)
        lose(NAME)
    with held_elsewhere(locks.read_lock(NAME)):
        assert not locks.write_lock(NAME).acquire(blocking=False)
    with held_elsewhere(locks.lock_many(["tests:a", "tests:b"])):
        assert not locks.lock("tests:b").acquire(blocking=False)
    with held_elsewhere(Lock(redis_server, NAME, timeout=5)):
        assert not Lock(redis_server, NAME, timeout=5).acquire(blocking=False)


@pytest.mark.parametrize(
    ("lock", "options", "error"),
    [
        (7, {}, "lock must be a lock name or a synchronous lock, got 7"),
        (NAME, {"metadata": "cron"}, "metadata must be a mapping with str keys, got str"),
        (locks.lock(NAME), {"using": "default"}, "using='default' requires a lock name"),
        (AsyncLock(Redis(), NAME), {}, "a synchronous lock"),
    ],
)
def test_invalid_arguments_are_refused(lock, options, error) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        held_elsewhere(lock, **options).__enter__()
    assert locks.get(NAME) is None


def test_the_holder_knows_at_once_and_no_other_lock_is_lost() -> None:
    threads = []
    lock = locks.using("django_redis").lock(
        NAME, timeout=30, on_lost=lambda lock: threads.append(threading.current_thread())
    )
    lock.acquire()
    with locks.lock("tests:other") as other:
        lose(NAME, using="django_redis")
        assert other.owned()
    assert lock.lost
    assert len(threads) == 1
    assert threads != [threading.current_thread()]
    with pytest.raises(LockLost):
        lock.release()
    assert locks.get(NAME) is None


def test_all_holders_of_the_name_lose_it() -> None:
    first, second = locks.semaphore(NAME, 2), locks.semaphore(NAME, 2)
    assert first.acquire()
    assert second.acquire(blocking=False)
    lose(NAME)
    assert (first.lost, second.lost) == (True, True)


def test_a_coroutine_loses_its_lock_to_a_coroutine_or_a_thread() -> None:
    async def work() -> None:
        lost = asyncio.Event()
        lock = locks.lock(NAME, timeout=30)
        await lock.aacquire()
        await alose(NAME)
        assert lock.lost
        with pytest.raises(LockLost):
            await lock.arelease()
        async with locks.lock(NAME, timeout=30, on_lost=lambda lock: lost.set()):
            await asyncio.to_thread(lose, NAME)
            await asyncio.wait_for(lost.wait(), 10)

    with pytest.raises(LockLost):
        asyncio.run(work())


def test_only_a_held_lock_can_be_lost() -> None:
    with pytest.raises(LockError, match=f"'{NAME}' cannot be lost: nobody holds it"):
        lose(NAME)
