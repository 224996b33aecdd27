"""Locks: acquire, release, extend, lose them, and be interrupted."""

import asyncio
import pickle
import re
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

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
from django_redislock.identity import running_task
from django_redislock.lock_types import base, lease_flows
from django_redislock.lock_types.acquisition import Acquisition
from django_redislock.signals import lock_force_released, lock_refused
from django_redislock.testing import held_elsewhere
from tests.lock_tools import (
    afree,
    free,
    held_by_another_task,
    interrupt_at,
    interrupt_where,
    listening,
    start,
    waiting,
)
from tests.tools import wait_until

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
    for very_long in (timedelta.max, 2**31, 1e300):
        with manager.lock("a", blocking_timeout=very_long) as lock:
            assert lock.owned()


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


async def test_the_end_of_a_block_does_not_release_the_lock_of_another_task(manager):
    lock = manager.lock("a")
    await lock.__aenter__()
    await lock.arelease()
    async with held_by_another_task(lock):
        with pytest.raises(LockNotOwnedError):
            await lock.__aexit__(None, None, None)
        assert (await manager.aget("a")).holders


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


def test_the_information_about_a_lock(manager):
    with manager.lock("a", timeout=timedelta(seconds=20)) as lock:
        info = manager.get("a")
        assert info.token == lock.token == UUID(lock.token).hex
    now = datetime.now(UTC)
    assert (info.name, info.kind, info.capacity, info.state) == ("a", "mutex", 1, "held")
    assert (info.waiters, info.weight, info.timeout, info.metadata) == (0, 1, 20.0, {})
    assert 15 < info.ttl <= 20
    assert abs(now - info.acquired_at) < timedelta(seconds=5)
    assert info.expires_at - info.acquired_at == timedelta(seconds=20)


def test_a_waiter_that_acquires_is_shown_as_the_holder_with_its_metadata(manager):
    metadata = {"why": "Ünïcode <b>", "list": [1, None, {"a": 0.5}]}
    others = {"when": datetime(2024, 5, 1, tzinfo=UTC), "id": UUID(int=1)}
    texts = {"when": "2024-05-01T00:00:00Z", "id": str(UUID(int=1))}

    def hold():
        threading.current_thread().name = "second 'one'"
        with manager.lock("a", metadata=metadata | others):
            return manager.get("a")

    with manager.lock("a"):
        waiter = start(hold)
        waiting(manager, "a", 1)
    info = waiter.result(60)
    assert info.holder.thread == "second 'one'"
    assert info.metadata == metadata | texts


@pytest.mark.parametrize("additional", [0, -1, float("nan"), float("inf"), "5", 1e300])
def test_an_invalid_extension_is_refused_by_name_and_value(manager, additional):
    with manager.lock("a", timeout=20) as lock:
        with pytest.raises((ValueError, TypeError), match="additional_time") as caught:
            lock.extend(additional)
        caught.match(str(additional).replace("+", r"\+"))
        assert 15 < manager.get("a").ttl <= 20
        assert lock.extend(validators.MAX_LEASE_SECONDS - 60)
        with pytest.raises(ValueError, match=r"additional_time must .* 10 years, got 100"):
            lock.extend(100)
        assert lock.extend(validators.MAX_LEASE_SECONDS, replace_ttl=True)


@pytest.mark.parametrize("method", [base.BaseLock.release, base.BaseLock.__exit__])
def test_an_interrupt_while_a_lock_is_left_leaves_nothing_held(method):
    files = [module.__file__ for module in (base, lease_flows, lease, registry, protocol, renewer)]
    lock, places = locks.lock("a", timeout=600), set()
    for step in range(3, 300):  # during the first two steps, no code of the package runs
        striking = interrupt_at(step, method.__code__, *files)
        with suppress(KeyboardInterrupt), striking as struck:
            lock.acquire()
            method(lock) if method is base.BaseLock.release else method(lock, None, None, None)
        wait_until(lambda: locks.get("a") is None, timeout=10)
        if not struck:
            break
        places |= {*struck}
    assert {"BaseLock._owner", "HoldsOfLock.remove", "BaseLock._release_hold"} <= places
    assert {"release_lease", "Lease.end", "remove", "release"} <= places


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


@pytest.mark.parametrize("place", ["add", "Renewer.watch", "Hold.begin"])
@pytest.mark.parametrize("least", [0, 600])
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_an_interrupt_after_an_acquisition_releases_the_lock(place, least, colour):
    async def enter():
        with interrupt_where(place, Acquisition.enter):
            if colour == "async":
                await lock.__aenter__()
            else:
                lock.__enter__()
        await afree(locks, "a")

    lock = locks.lock("a", timeout=600, at_least_for=least)
    asyncio.run(enter())
    assert not lock.token


def test_an_interrupt_before_the_request_leaves_nothing(monkeypatch):
    def interrupt(*args, **more):
        raise KeyboardInterrupt

    lock = locks.lock("a", timeout=600)
    with monkeypatch.context() as patch:
        patch.setattr(Acquisition, "new_request", interrupt)
        with pytest.raises(KeyboardInterrupt):
            lock.acquire()
    with lock:
        lock.assert_held()


@pytest.mark.parametrize("place", ["add", "Hold.begin"])
def test_an_interrupt_during_reentry_leaves_the_lock_to_its_holder(place):
    with locks.lock("a", timeout=600, reentrant=True) as lock:
        with interrupt_where(place, Acquisition.enter):
            lock.__enter__()
        lock.assert_held()
        assert lock.owned()
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

PAIRS = {
    "mutex": [lambda: locks.lock(NAME)] * 2,
    "read and write": [lambda: locks.read_lock(NAME), lambda: locks.write_lock(NAME)],
    "lock_many": [lambda: locks.lock_many([NAME, "other"])] * 2,
    "quorum": [lambda: locks.quorum(NAME, ["default", "second", "third"])] * 2,
}
"""Functions that create two locks, which exclude each other."""


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


@pytest.mark.parametrize("makers", PAIRS.values(), ids=PAIRS)
def test_callers_with_the_token_of_the_holder_wait_for_the_release(three_servers, makers):
    """They have positions of their own. One that gives up ends neither the hold nor a wait."""
    first, second, third, impatient = (makers[number > 0]() for number in range(4))
    assert first.acquire(token=TOKEN)
    patient = [start(hold_once, second), start(asyncio.run, ahold_once(third))]
    waiting(locks, NAME, 2)

    for options in ({"blocking": False}, {"blocking_timeout": 0.05}):
        asking = start(partial(impatient.acquire, token=TOKEN, **options))
        assert asking.result(60) is False
        assert asyncio.run(impatient.aacquire(token=TOKEN, **options)) is False
    with pytest.raises(LockNotOwnedError):
        impatient.release()
    assert [each.done() for each in patient] == [False, False]
    assert first.owned()
    assert first.token == TOKEN
    first.release()

    assert [each.result(60) for each in patient] == [True, True]
    free(locks, NAME)


# What users see of a chosen token


def test_holders_with_the_same_token_are_released_together_or_one_by_one():
    one, two, three = (locks.semaphore(NAME, 3) for _ in range(3))
    for each in (one, two):
        assert each.acquire(token=TOKEN)
    assert three.acquire(token=f"{TOKEN}-b")
    first, second, third = locks.get(NAME).holders
    assert [first.token, second.token, third.token] == [TOKEN, TOKEN, f"{TOKEN}-b"]
    assert len({first.stored_token, second.stored_token, third.stored_token}) == 3

    assert locks.force_release(NAME, first.stored_token) == 1
    assert [each.owned() for each in (one, two, three)] == [False, True, True]
    assert one.acquire(blocking=False, token=TOKEN)
    released = []
    with listening(lock_force_released, lambda **sent: released.append(sent["tokens"])):
        assert locks.force_release(NAME, TOKEN) == 2
    assert released == [(TOKEN, TOKEN)]
    assert three.owned()
    three.release()


def test_a_lost_hold_is_not_owned_because_another_holder_has_its_token():
    first, second = (locks.lock(NAME, auto_renewal=False) for _ in range(2))
    assert first.acquire(token=TOKEN)
    locks.force_release(NAME)
    assert second.acquire(token=TOKEN)
    assert not first.owned()
    with pytest.raises(LockNotOwnedError):
        first.extend(5)
    with pytest.raises(LockNotOwnedError):
        first.release()
    assert second.owned()
    second.release()


# LockNotAcquired: the block did not run, because of which lock, and who holds it


MAKERS = {
    "mutex": lambda **options: locks.lock("a", **options),
    "reader": lambda **options: locks.read_lock("a", **options),
    "semaphore": lambda **options: locks.semaphore("a", 2, weight=2, **options),
    "many": lambda **options: locks.lock_many(["a", "b"], **options),
    "quorum": lambda **options: locks.quorum("a", ["default", "second", "third"], **options),
}


@pytest.fixture(params=MAKERS)
def make(request):
    if request.param == "quorum":
        request.getfixturevalue("three_servers")
    return MAKERS[request.param]


async def test_what_does_not_run(make):
    @make(blocking=False)
    def work():
        pytest.fail("the function ran")

    @make(blocking=False)
    async def awork():
        pytest.fail("the function ran")

    lock = make(blocking_timeout=0.05)
    in_the_way = locks.write_lock("a") if lock.kind == "readwrite" else make()
    with held_elsewhere(in_the_way):
        with pytest.raises(LockNotAcquired) as caught, make(blocking=False):
            pytest.fail("the block ran")
        with pytest.raises(LockNotAcquired):
            async with lock:
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


@pytest.mark.django_db(transaction=True)
def test_a_transaction_that_does_not_begin():
    atomic = locks.atomic("a", blocking=False)
    with held_elsewhere("a"), pytest.raises(LockNotAcquired), atomic:
        pytest.fail("the block ran")


@pytest.mark.parametrize(
    "misuse",
    [locks.lock("a").acquire, locks.semaphore("a", 2).acquire, lambda: locks.force_release("a")],
)
def test_misuse_and_a_loss_are_none(misuse):
    """The caller would wait for itself, or uses the name for another lock type."""
    with pytest.raises(LockError) as caught, locks.lock("a"):
        misuse()
    assert not isinstance(caught.value, LockNotAcquired)


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


def test_the_error_of_several_names_the_lock_that_blocked():
    assert start(locks.lock("b", auto_renewal=False).acquire).result(60)
    many = locks.lock_many(["a", "b", "c"], reentrant=True, blocking=False)
    with locks.lock("a"), pytest.raises(LockError, match=r"^Lock 'b' was not acquired") as caught:
        many.__enter__()
    assert caught.value.lock_name == "b"
    assert caught.value.holder == locks.get("b").holder
    locks.force_release("b")


def test_the_error_names_the_task_of_the_holder_and_nobody_if_the_lock_became_free():
    def hold():
        running_task.set(("shop.sync", "1"))
        return locks.lock("a", auto_renewal=False).acquire()

    assert start(hold).result(60)
    with pytest.raises(LockNotAcquired, match=r"held by .* \(shop\.sync\) for "):
        locks.lock("a", blocking=False).__enter__()
    with (
        listening(lock_refused, lambda **about: locks.force_release("a")),
        pytest.raises(LockNotAcquired, match=r"without waiting \(blocking=False\)$") as caught,
    ):
        locks.lock("a", blocking=False).__enter__()
    assert caught.value.holder is None


def test_a_cooldown_is_named():
    with locks.lock("a", at_least_for=60):
        pass
    lock = locks.lock("a", blocking=False)
    with pytest.raises(LockError, match=r"it is in cooldown for (59s|1m 00s)"), lock:
        pass
    assert locks.force_release("a") == 1
