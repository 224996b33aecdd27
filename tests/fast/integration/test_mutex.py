"""Locks: acquire, release, extend, lose them, and be interrupted."""

import asyncio
import pickle
import re
import threading
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial

import pytest
import redis.exceptions
from redis import exceptions

from django_redislock import (
    LockError,
    LockLost,
    LockNotAcquired,
    LockNotOwnedError,
    locks,
    validators,
)
from django_redislock.engine import lease, protocol, registry, renewer
from django_redislock.lock_types import base, lease_flows
from django_redislock.testing import held_elsewhere
from tests.lock_tools import (
    free,
    interrupt_at,
    start,
    waiting,
)
from tests.tools import wait_until

FILES = [module.__file__ for module in (base, lease_flows, lease, registry, protocol, renewer)]

NAMES = ["a b {c} 'd' \"e\" %s \\", "*?[a-z]", "h:index", "grant:x:y", "🔒" * 128]


def test_with_holds_it_and_releases_it(manager):
    with manager.lock("a", timeout=10, auto_renewal=False) as lock:
        assert repr(lock) == "<Mutex 'a'>"
        assert lock.locked()
        assert lock.owned()
        assert manager.get("a").token == lock.token
        assert lock.extend(50) is True
        assert 55 < manager.get("a").ttl <= 60
        assert lock.extend(timedelta(seconds=5), replace_ttl=True) is True
        assert 3 < manager.get("a").ttl <= 5
        assert lock.reacquire() is True
        assert 8 < manager.get("a").ttl <= 10
    assert not lock.locked()
    assert not lock.owned()
    assert manager.get("a") is None


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_any_name_can_be_held_listed_and_released(name):
    with locks.lock(name):
        assert locks.get(name).name == name
        assert [info.name for info in locks.active()] == [name]
        assert locks.lock(name, blocking=False).acquire() is False
    assert locks.get(name) is None


def test_blocking_timeout_ends_the_wait(manager):
    with manager.lock("a"):
        began = time.monotonic()
        assert manager.lock("a", blocking_timeout=0.3).acquire() is False
        assert time.monotonic() - began >= 0.3
        assert manager.lock("a").acquire(blocking_timeout=timedelta(milliseconds=50)) is False
        assert manager.get("a").waiters == 0


def test_an_error_in_the_block_propagates_although_the_lock_was_lost(manager, caplog):
    with pytest.raises(ZeroDivisionError), manager.lock("a"):
        raise ZeroDivisionError
    assert manager.get("a") is None
    with pytest.raises(ZeroDivisionError), manager.lock("a"):
        manager.force_release("a") / 0
    assert "Lock not released at the end of its block: name='a'" in caplog.text


def test_only_the_holder_can_release_a_lock(manager):
    with pytest.raises(LockNotOwnedError, match="'a'") as caught:
        manager.lock("a").release()
    assert isinstance(caught.value, redis.exceptions.LockNotOwnedError)
    with manager.lock("a") as lock:
        with pytest.raises(LockNotOwnedError):
            manager.lock("a").release()
        with pytest.raises(LockNotOwnedError):
            start(lock.release).result(60)
        assert lock.owned()


def test_a_thread_that_acquires_its_own_lock_again_gets_an_error(manager):
    message = "Lock 'a' is already held by this thread. Use reentrant=True to acquire it again."
    with manager.lock("a"):
        with pytest.raises(LockError, match=re.escape(message)):
            manager.lock("a").acquire()
        assert manager.lock("a").acquire(blocking_timeout=0.05) is False
    ends = manager.lock("a", timeout=0.6, auto_renewal=False)
    assert ends.acquire()
    with manager.lock("a") as second:
        assert ends.lost
        assert second.owned()


def test_an_expired_lease_is_lost(manager):
    reported = []
    lock = manager.lock("a", timeout=0.05, auto_renewal=False, on_lost=reported.append)
    assert lock.acquire()
    wait_until(lambda: lock.lost and reported == [lock])
    free(manager, "a")
    assert not lock.owned()
    assert_held = partial(manager.assert_held, "a")
    extend = partial(lock.extend, 5)
    for use in (lock.assert_held, assert_held, extend, lock.reacquire, lock.release):
        with pytest.raises(LockLost):
            use()


def test_fencing_tokens_grow_when_redis_lost_its_data(manager, redis_server):
    with manager.lock("a") as lock:
        before = lock.fence_token
    redis_server.flushall()
    with manager.lock("a") as lock:
        assert lock.fence_token > before


def test_a_waiter_that_acquires_is_shown_as_the_holder_with_its_metadata(manager):
    metadata = {"why": "Ünïcode <b>", "list": [1, None, {"a": 0.5}]}

    def hold():
        threading.current_thread().name = "second 'one'"
        with manager.lock("a", metadata=metadata):
            return manager.get("a")

    with manager.lock("a"):
        waiter = start(hold)
        waiting(manager, "a", 1)
    info = waiter.result(60)
    assert info.holder.thread == "second 'one'"
    assert info.metadata == metadata


@pytest.mark.parametrize("additional", [0, -1, float("nan"), "5"])
def test_an_invalid_extension_is_refused_by_name(manager, additional):
    with manager.lock("a", timeout=20) as lock:
        with pytest.raises((ValueError, TypeError), match="additional_time"):
            lock.extend(additional)
        assert lock.extend(validators.MAX_LEASE_SECONDS - 60)
        with pytest.raises(ValueError, match="additional_time"):
            lock.extend(100)


@pytest.mark.parametrize(
    ("method", "first", "place"),  # before the first step, no code of the package runs
    [
        (base.BaseLock.__enter__, 1, "add"),
        (base.BaseLock.__exit__, 3, "remove"),
        (base.BaseLock.release, 3, "remove"),
    ],
)
def test_an_interrupt_while_a_lock_is_entered_or_left_leaves_nothing_held(method, first, place):
    lock, places = locks.lock("a", timeout=600), set()
    for step in range(first, 300):
        with suppress(KeyboardInterrupt), interrupt_at(step, method.__code__, *FILES) as struck:
            lock.__enter__()
            lock.release() if method is base.BaseLock.release else lock.__exit__(None, None, None)
        free(locks, "a", timeout=10)
        assert not lock.token, struck
        if not struck:
            break
        places |= {*struck}
    assert place in places


def test_a_block_releases_what_was_acquired_in_it():
    with locks.lock("a", timeout=600) as lock:
        locks.force_release("a")
        with pytest.raises(LockLost):
            lock.reacquire()
        lock.acquire()
    assert not locks.get("a")
    with locks.lock("a", timeout=600, reentrant=True) as lock:
        with lock:
            lock.release()
        assert not lock.owned()
        assert lock.acquire()
    assert not locks.get("a")


def test_a_generator_that_another_thread_closes_releases_its_lock():
    def work():
        with locks.lock("a", timeout=600):
            yield

    generator = work()
    start(next, generator).result(60)
    assert locks.get("a")
    start(generator.close).result(60)
    assert not locks.get("a")


def test_a_holder_that_ended_without_a_release_is_forgotten():
    lock = locks.semaphore("a", 3, timeout=1)
    for _ in range(2):
        start(lock.acquire).result(60)
    free(locks, "a")
    with lock:
        assert len(lock._holds) == 1


# A token that a caller chose belongs to one hold, and lets no second caller in


TOKEN = "web-1"
NAME = "chosen"


def hold_once(lock):
    assert lock.acquire(token=TOKEN)
    is_owned = lock.owned() and lock.token == TOKEN
    lock.release()
    return is_owned


async def ahold_once(lock):
    assert await lock.aacquire(token=TOKEN)
    is_owned = await lock.aowned() and lock.token == TOKEN
    await lock.arelease()
    return is_owned


def test_callers_with_the_token_of_the_holder_wait_for_the_release():
    """They have positions of their own. One that gives up ends neither the hold nor a wait."""
    first, second, third, impatient = (locks.lock(NAME) for _ in range(4))
    assert first.acquire(token=TOKEN)
    patient = [start(hold_once, second), start(asyncio.run, ahold_once(third))]
    waiting(locks, NAME, 2)
    asking = start(partial(impatient.acquire, token=TOKEN, blocking_timeout=0.05))
    assert asking.result(60) is False
    with pytest.raises(LockNotOwnedError):
        impatient.release()
    assert [each.done() for each in patient] == [False, False]
    assert first.owned()
    first.release()
    assert [each.result(60) for each in patient] == [True, True]
    free(locks, NAME)


# LockNotAcquired: the block did not run, because of which lock, and who holds it


async def test_what_does_not_run():
    @locks.lock("a", blocking=False)
    def work():
        pytest.fail("the function ran")

    @locks.lock("a", blocking=False)
    async def awork():
        pytest.fail("the function ran")

    with held_elsewhere("a"):
        with pytest.raises(LockNotAcquired) as caught, locks.lock("a", blocking=False):
            pytest.fail("the block ran")
        with pytest.raises(LockNotAcquired):
            async with locks.lock_many(["a", "b"], blocking_timeout=0.05):
                pytest.fail("the block ran")
        with pytest.raises(LockNotAcquired):
            work()
        with pytest.raises(LockNotAcquired):
            await awork()
    assert caught.value.lock_name == "a"
    assert isinstance(caught.value, exceptions.LockError)
    copied = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  our own bytes
    assert (type(copied), str(copied)) == (LockNotAcquired, str(caught.value))
    assert copied.holder == caught.value.holder


# What is in the way


def test_the_error_names_the_holder_and_counts_the_waiters(hold):
    held = hold("a")
    with pytest.raises(LockError) as caught, locks.lock("a", blocking_timeout=0.1):
        pass
    holder = locks.get("a").holder
    assert caught.value.holder == holder
    expected = rf"Lock 'a' was not acquired within 0\.1 s: held by {holder.host}:{holder.pid} for "
    assert re.fullmatch(expected + r"\d+\.\ds", str(caught.value.message))
    waiter = start(lambda: locks.lock("a").acquire())
    waiting(locks, "a", 1)
    with pytest.raises(LockError, match=", 1 waiting"), locks.lock("a", blocking=False):
        pass
    held.release()
    assert waiter.result(60)
    locks.force_release("a")
