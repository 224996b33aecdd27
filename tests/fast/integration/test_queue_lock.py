"""Queue locks: holds that no process renews, and that another process takes over or releases."""

import threading

import pytest
from redis.exceptions import ConnectionError, TimeoutError

from django_redislock import LockLost, LockNotOwnedError, locks
from django_redislock.lock_types import QueueLock
from tests.lock_tools import free, hanging, renewed
from tests.tools import wait_until

NAME = "tests:place"
TASK = ("shop.sync", "an-id")


@pytest.fixture
def place():
    place = QueueLock(locks.lock(NAME), "a-token", TASK)
    yield place
    place.release()


def test_it_is_told_as_the_tasks(place):
    assert place.acquire(60)
    info = locks.get(NAME)
    assert (info.holder.task_name, info.holder.task_id) == TASK
    assert (info.token, info.timeout) == ("a-token", 60)
    assert place.release()
    assert not place.release()
    assert locks.get(NAME) is None


def test_what_another_holds_is_not_taken(place):
    with locks.lock(NAME):
        assert not place.acquire(60)
        assert not place.release()


def test_nothing_renews_it_and_nobody_is_told_of_its_end(place, caplog):
    assert place.acquire(0.1)
    wait_until(lambda: locks.get(NAME) is None)
    assert not caplog.records


def test_a_lock_takes_it_over(place):
    assert place.acquire(60)
    fence = locks.get(NAME).fence_token
    lock = locks.lock(NAME, blocking=False)
    assert not lock.acquire()
    lock.predecessor = place.token
    with lock:
        assert lock.fence_token > fence
        assert not place.release()
        assert locks.get(NAME).token == lock.token
    assert locks.get(NAME) is None


def test_one_place_gives_way_to_another(place):
    other = QueueLock(locks.lock(NAME), "another", TASK)
    assert place.acquire(60)
    assert not other.acquire(60)
    assert other.take_over(place.token, 30)
    info = locks.get(NAME)
    assert (info.token, info.timeout) == ("another", 30)
    assert not place.release()
    assert other.release()


@pytest.mark.parametrize("held", [True, False])
def test_a_place_that_has_gone_meanwhile_gives_no_way(place, held):
    if held:
        assert place.acquire(60)
    other = QueueLock(locks.lock(NAME), "another", TASK)
    assert not other.take_over("gone", 30)
    assert not other.release()


def test_it_takes_over_what_a_lock_holds(place):
    lock = place.lock
    assert lock.acquire()
    fence, waits = lock.fence_token, threading.Thread(target=lock.acquire, kwargs=waiting(5))
    waits.start()
    wait_until(lambda: locks.get(NAME).waiters)
    place.inherit(60)
    assert lock.token is None
    info = locks.get(NAME)
    assert (info.token, info.waiters) == (place.token, 1), "whoever waits, waits on"
    assert info.fence_token > fence
    assert info.holder.task_id == "an-id"
    place.release()
    waits.join()
    locks.force_release(NAME)


def waiting(seconds):
    return {"blocking_timeout": seconds}


def test_what_a_lock_lost_or_never_had_is_not_taken_over(place):
    with pytest.raises(LockNotOwnedError):
        place.inherit(60)
    assert place.lock.acquire()
    locks.force_release(NAME)
    with locks.lock(NAME, blocking=False):
        with pytest.raises(LockLost, match="transfer"):
            place.inherit(60)
        assert place.lock.token is None


def test_what_never_began_has_no_least_time():
    place = QueueLock(locks.lock(NAME, at_least_for=60), "a-token", TASK)
    assert place.acquire(10)
    assert 9 < locks.get(NAME).ttl <= 10
    assert place.release()
    assert locks.get(NAME) is None


def test_what_was_lost_and_is_free_is_held_for_it_all_the_same(place):
    assert place.lock.acquire()
    locks.force_release(NAME)
    place.inherit(60)
    assert locks.get(NAME).token == place.token


def test_what_can_not_be_passed_on_is_given_back(own_server, own_locks):
    lock = own_locks.lock(NAME, timeout=1)
    assert lock.acquire()
    own_server.stop()
    with pytest.raises(ConnectionError):
        QueueLock(lock, "a-token", TASK).inherit(60)
    assert lock.token is None


@pytest.fixture
def hasty(alias_on, own_server):
    """A manager whose client does not wait long for Redis, and a queue lock."""
    own = alias_on(own_server.url, socket_timeout=0.2)
    return own, QueueLock(own.lock(NAME), "a-token", TASK)


def test_a_release_that_times_out_is_repeated_when_redis_responds(own_server, hasty):
    own, place = hasty
    assert place.acquire(60)
    with hanging(own_server), pytest.raises(TimeoutError):
        place.release()
    wait_until(lambda: own.get(NAME) is None)


def test_an_acquisition_that_timed_out_is_released_later(own_server, hasty):
    own, place = hasty
    with hanging(own_server):
        with pytest.raises(TimeoutError):
            place.acquire(60)
        place.release_later()
    free(own, NAME)


def test_a_queue_lock_that_is_acquired_again_is_not_released_later(own_server, hasty):
    own, place = hasty
    with hanging(own_server):
        place.release_later()
    assert place.acquire(60)
    with own.lock("another", timeout=1.5):
        renewed(own, "another", times=2)  # so it would have been, meanwhile
    assert own.get(NAME).token == place.token
