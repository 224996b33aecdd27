"""Semaphores, read-write locks, `lock_many()`, re-entrancy and cooldown."""

import asyncio
from contextlib import ExitStack, contextmanager

import pytest
from redis.exceptions import ResponseError

from django_redislock import LockError, LockLost, locks
from django_redislock.signals import lock_waiting
from tests.lock_tools import free, listening, start, waiting
from tests.round_trips import RoundTrips
from tests.tools import wait_until


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
        lock.reacquire()
        lock.extend(0.3, replace_ttl=True)
        assert locks.get("tick").ttl > 0.5, "a shorter lease does not end it"
    assert lock.token is None
    info = locks.get("tick")
    assert info.state == "cooldown"
    assert 1.5 <= (info.expires_at - acquired).total_seconds() < 1.6
    assert not locks.lock("tick", blocking=False).acquire()
    with locks.lock("tick", blocking_timeout=10):
        began = locks.get("tick").acquired_at
    assert (began - acquired).total_seconds() >= 1.5


# Several locks, all or none

NAMES = ["b", "a", "c", "b"]


def held():
    return sorted(info.name for info in locks.active())


async def test_all_are_held_and_released(manager):
    with manager.lock_many(NAMES, timeout=10) as lock:
        assert sorted(info.name for info in manager.active()) == ["a", "b", "c"]
        assert lock.owned()
        assert lock.locked()
        lock.assert_held()
        manager.assert_held("b")
        assert lock.names == ("a", "b", "c")
        assert set(lock.fence_tokens) == {"a", "b", "c"}
        assert lock.fence_tokens["a"] == manager.get("a").fence_token
        assert lock.fence_token is None, "each has its own"
        lock.extend(100)
        assert all(info.ttl > 100 for info in manager.active())
    assert held() == []
    async with locks.lock_many(NAMES) as lock:
        assert await lock.aowned()
        assert await lock.alocked()
        await lock.aextend(10)
        assert not await locks.lock_many(["c", "d"], blocking=False).aacquire()
    assert not await lock.alocked()
    assert held() == []


def test_a_partial_acquisition_keeps_no_lock():
    with locks.lock("c"):
        assert not locks.lock_many(NAMES, at_least_for=30, blocking=False).acquire()
        assert not locks.lock_many(NAMES, blocking_timeout=0.1).acquire()
        assert held() == ["c"], "and no cooldown"


def test_the_order_of_names_cannot_cause_a_deadlock():
    def use(names):
        for _ in range(50):
            with locks.lock_many(names, blocking_timeout=20):
                pass

    users = [start(use, names) for names in (["a", "b"], ["b", "a"], ["c", "a"], ["b", "c"])]
    for user in users:
        user.result(60)


def test_if_a_lock_is_lost_during_a_wait_all_are_requested_again():
    holder = locks.lock("b")
    assert holder.acquire()
    many = locks.lock_many(["b", "a"], timeout=0.5, auto_renewal=False, blocking_timeout=20)

    def use():
        return held() if many.acquire() and not many.lost else []

    waits = start(use)
    waiting(locks, "b", 1)
    assert held() == ["a", "b"]
    free(locks, "a")
    holder.release()
    assert waits.result(60) == ["a", "b"]
    wait_until(lambda: held() == [])


@contextmanager
def forbidden(client):
    """In the block, the server refuses requests about locks whose names end with "!"."""
    client.acl_setuser("default", enabled=True, reset_keys=True, keys=["*[^!]"])
    yield
    client.acl_setuser("default", enabled=True, reset_keys=True, keys=["*"])


def test_an_error_at_one_does_not_keep_the_others(own_locks, own_redis):
    many = own_locks.lock_many(["a", "b!", "c"], timeout=600)
    assert many.acquire()
    with forbidden(own_redis):
        with pytest.raises(ResponseError, match=r"(?i)permission"):
            many.release()
        assert len(own_redis.keys("*:lock:*")) == 1
    free(own_locks, "b!")


def test_a_lock_that_cannot_be_given_up_after_the_wait_is_released_later(own_locks, own_redis):
    many = own_locks.lock_many(["a!", "b"], timeout=600, blocking_timeout=0.1)
    with own_locks.lock("b"), ExitStack() as refusal:
        forbid = forbidden(own_redis)
        with listening(lock_waiting, lambda **about: refusal.enter_context(forbid)):
            assert not many.acquire()
        assert own_redis.keys("*:lock:a!")
    free(own_locks, "a!")


def test_the_loss_of_several_calls_on_lost_once():
    lost = []
    with locks.lock_many(NAMES, timeout=1.5, on_lost=lost.append) as lock:
        locks.force_release("a")
        locks.force_release("b")
        wait_until(lambda: lock.lost and lost)
        with pytest.raises(LockLost):
            lock.assert_held()
        with pytest.raises(LockLost):
            lock.release()
        assert lock.acquire()
    assert lost == [lock]
