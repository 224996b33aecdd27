"""Queue locks: holds that no process renews, and that another process takes over or releases."""

import pytest
from redis.exceptions import TimeoutError

from django_redislock import LockLost, LockNotOwnedError, locks
from django_redislock.lock_types import QueueLock
from tests.lock_tools import free, hanging, renewed, start
from tests.tools import wait_until

NAME = "tests:queue-lock"
TASK = ("shop.sync", "an-id")


@pytest.fixture
def queue_lock():
    queue_lock = QueueLock(locks.lock(NAME), "a-token", TASK)
    yield queue_lock
    queue_lock.release()


def test_a_queue_lock_is_not_renewed_and_its_expiry_not_logged(queue_lock, caplog):
    assert queue_lock.acquire(0.1)
    wait_until(lambda: locks.get(NAME) is None)
    assert NAME not in caplog.text


def test_only_a_hold_of_the_same_type_is_taken_over(queue_lock):
    assert not queue_lock.take_over("gone", 30)
    assert locks.get(NAME) is None
    with locks.semaphore(NAME, 2):
        assert not queue_lock.acquire(60)
        assert not queue_lock.take_over("gone", 60)


def test_a_lock_takes_over_a_queue_lock(queue_lock):
    assert queue_lock.acquire(60)
    assert queue_lock.set_lease(5)
    assert locks.get(NAME).ttl <= 5
    fence = locks.get(NAME).fence_token
    lock = locks.lock(NAME, blocking=False)
    assert not lock.acquire()
    lock.predecessor = queue_lock.token
    with lock:
        assert lock.fence_token > fence
        assert not queue_lock.release()
        assert locks.get(NAME).token == lock.token
    assert locks.get(NAME) is None


def test_a_queue_lock_inherits_a_lock_whose_waiters_stay(queue_lock):
    lock = queue_lock.lock
    assert lock.acquire()
    fence, waits = lock.fence_token, start(lambda: lock.acquire(blocking_timeout=5))
    wait_until(lambda: locks.get(NAME).waiters)
    queue_lock.inherit(60)
    assert lock.token is None
    info = locks.get(NAME)
    assert (info.token, info.waiters) == (queue_lock.token, 1)
    assert info.fence_token > fence
    assert info.holder.task_id == "an-id"
    queue_lock.release()
    waits.result(60)
    locks.force_release(NAME)


def test_a_lock_that_is_not_held_is_not_inherited(queue_lock):
    with pytest.raises(LockNotOwnedError):
        queue_lock.inherit(60)
    assert queue_lock.lock.acquire()
    locks.force_release(NAME)
    with locks.lock(NAME, blocking=False):
        with pytest.raises(LockLost, match="transfer"):
            queue_lock.inherit(60)
        assert queue_lock.lock.token is None


@pytest.fixture
def hasty(alias_on, own_server):
    """A manager whose client has a short timeout, and a queue lock."""
    own = alias_on(own_server.url, socket_timeout=0.2)
    return own, QueueLock(own.lock(NAME), "a-token", TASK)


def test_what_times_out_is_released_when_redis_responds(own_server, hasty):
    own, queue_lock = hasty
    assert queue_lock.acquire(60)
    with hanging(own_server), pytest.raises(TimeoutError):
        queue_lock.release()
    free(own, NAME)
    with hanging(own_server):
        with pytest.raises(TimeoutError):
            queue_lock.acquire(60)
        queue_lock.release_later()
    free(own, NAME)


def test_a_queue_lock_that_is_acquired_again_is_not_released_later(own_server, hasty):
    own, queue_lock = hasty
    with hanging(own_server):
        queue_lock.release_later()
    assert queue_lock.acquire(60)
    with own.lock("another", timeout=1.5):
        renewed(own, "another", times=2)
    assert own.get(NAME).token == queue_lock.token


def test_a_release_is_not_repeated_for_longer_than_a_minute(own_server, hasty, moving_clock):
    """Later, another process may hold the lock with the same token."""
    own, queue_lock = hasty
    assert queue_lock.acquire(600)
    with hanging(own_server):
        queue_lock.release_later()
        moving_clock.forward(61)
    moving_clock.forward(2)
    assert own.get(NAME).token == queue_lock.token
    assert queue_lock.release()
