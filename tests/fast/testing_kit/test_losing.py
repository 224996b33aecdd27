"""lose() makes a holder lose its lock, and the holder knows at once."""

import asyncio
import threading

import pytest

from django_redislock import LockError, LockLost, locks
from django_redislock.testing import alose, held_elsewhere, lose
from tests.lock_tools import start

NAME = "tests:kit"


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
