"""`lock_many()` acquires several locks, all or none."""

import pytest
from redis.exceptions import ConnectionError

from django_redislock import LockError, LockLost, locks
from django_redislock.lock_types.multi_lock import MultiAcquisition
from tests.lock_tools import free, interrupt_where, start, waiting
from tests.tools import wait_until

NAMES = ["b", "a", "c", "b"]


def held():
    return sorted(info.name for info in locks.active())


def test_all_are_held_and_released(manager):
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


def test_a_partial_acquisition_keeps_no_lock():
    with locks.lock("c"):
        assert not locks.lock_many(NAMES, blocking=False).acquire()
        assert not locks.lock_many(NAMES, blocking_timeout=0.1).acquire()
        assert held() == ["c"]
        with pytest.raises(LockError), locks.lock_many(NAMES, blocking_timeout=0):
            pass
        assert held() == ["c"]


def test_the_order_of_names_cannot_cause_a_deadlock():
    def use(names):
        for _ in range(50):
            with locks.lock_many(names, blocking_timeout=20):
                pass

    users = [start(use, names) for names in (["a", "b"], ["b", "a"], ["c", "a"], ["b", "c"])]
    for user in users:
        user.result(60)


@pytest.mark.parametrize(("wait", "gets"), [(20, ["a", "b"]), (0.8, [])])
def test_if_a_lock_is_lost_during_a_wait_all_are_requested_again(wait, gets):
    holder = locks.lock("b")
    assert holder.acquire()
    many = locks.lock_many(["b", "a"], timeout=0.5, auto_renewal=False, blocking_timeout=wait)

    def use():
        return held() if many.acquire() and not many.lost else []

    waits = start(use)
    waiting(locks, "b", 1)
    assert held() == ["a", "b"]
    free(locks, "a")
    if gets:
        holder.release()
    assert waits.result(60) == gets
    if not gets:
        holder.release()
    wait_until(lambda: held() == [])


def test_the_first_of_several_errors_is_raised(own_locks, own_server):
    lock = own_locks.lock_many(NAMES)
    assert lock.acquire()
    own_server.stop()
    with pytest.raises(ConnectionError):
        lock.release()
    assert lock.token is None


async def test_async_too():
    async with locks.lock_many(NAMES) as lock:
        assert await lock.aowned()
        assert await lock.alocked()
        await lock.aextend(10)
        assert not await locks.lock_many(["c", "d"], blocking=False).aacquire()
    assert not await lock.alocked()
    assert held() == []


def test_a_partial_acquisition_leaves_no_cooldown():
    with locks.lock("b"):
        assert not locks.lock_many(["a", "b"], at_least_for=30, blocking=False).acquire()
        assert held() == ["b"]


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


@pytest.mark.parametrize("place", ["CompositeHold.__init__", "CompositeHold.begin"])
def test_an_interrupt_after_the_acquisition_releases_all_locks(place):
    many = locks.lock_many(["a", "b"], timeout=600)
    with interrupt_where(place, MultiAcquisition._acquire_each):
        many.__enter__()
    wait_until(lambda: held() == [])
