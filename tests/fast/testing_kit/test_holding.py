"""held_elsewhere() holds a lock as another process would. lose() makes a holder lose its lock."""

import asyncio
import threading

import pytest
from redis.asyncio import Redis

from django_redislock import AsyncLock, Lock, LockError, LockLost, LockNotOwnedError, locks
from django_redislock.testing import alose, held_elsewhere, lose
from tests.lock_tools import renewed, start

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


def test_the_lock_object_itself_is_not_the_holder() -> None:
    lock = locks.lock(NAME, at_least_for=60, reentrant=True, on_lost=pytest.fail)
    with held_elsewhere(lock):
        assert not lock.owned()
        lose(NAME)
    assert lock.acquire(blocking=False)
    assert lock.at_least_for == 60
    lock.at_least_for = 0
    locks.force_release(NAME)


@pytest.mark.parametrize(
    ("lock", "options", "error"),
    [
        (7, {}, "lock must be a lock name or a synchronous lock, got 7"),
        ("", {}, "name must not be empty"),
        (NAME, {"holder_task_id": 7}, "holder_task_id must be a str, got 7"),
        (NAME, {"metadata": "cron"}, "metadata must be a mapping with str keys, got str"),
        (NAME, {"using": 7}, "alias must be a str, got 7"),
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
    unrenewed = locks.lock(NAME, timeout=30, auto_renewal=False)
    unrenewed.acquire()
    lose(NAME)
    assert not unrenewed.lost
    assert not unrenewed.owned()
    assert locks.history(NAME)[0].outcome == "expired"
    with pytest.raises(LockLost):
        unrenewed.release()
    assert locks.history(NAME)[0].outcome == "lost"


def test_on_lost_cannot_call_lose(caplog) -> None:
    other = NAME + ":other"
    lock = locks.lock(NAME, on_lost=lambda lock: lose(other))
    with locks.lock(other) as held:
        with pytest.raises(LockLost), lock:
            lose(NAME)
        assert held.owned()
    assert "was called from the renewal thread" in caplog.text


def test_lose_waits_for_a_renewal_in_progress() -> None:
    begun, go = threading.Event(), threading.Event()

    def wait(lock) -> None:
        begun.set()
        assert go.wait(60)

    other = locks.lock("tests:other", timeout=0.3, on_lost=wait)
    other.acquire()
    locks.force_release("tests:other")
    assert begun.wait(60)
    with held_elsewhere(NAME):
        losing = start(lose, NAME)
        with pytest.raises(TimeoutError):
            losing.result(0.1)
        go.set()
        losing.result(60)


def test_all_holders_of_the_name_lose_it() -> None:
    first, second = locks.semaphore(NAME, 2), locks.semaphore(NAME, 2)
    assert first.acquire()
    assert second.acquire(blocking=False)
    lose(NAME)
    assert (first.lost, second.lost) == (True, True)
    several = locks.lock_many(["tests:a", "tests:b"])
    several.acquire()
    lose("tests:b")
    with pytest.raises(LockLost):
        several.release()


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
    for name in (7, ""):
        with pytest.raises((TypeError, ValueError), match="name must"):
            lose(name)
