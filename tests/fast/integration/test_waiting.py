"""Waiters acquire a lock in the order in which they arrive."""

import time

import pytest

from django_redislock import locks
from django_redislock.lock_types import Mutex
from tests.lock_tools import commands, free, start, waiting
from tests.tools import wait_until


def test_who_releases_and_asks_again_goes_to_the_end_of_the_queue(manager):
    entered = []

    def again_and_again(name):
        for _ in range(10):
            with manager.lock("a"):
                entered.append(name)
                wait_until(lambda: manager.get("a").waiters == 1 or len(entered) > 18)

    first, second = start(again_and_again, "x"), start(again_and_again, "y")
    first.result(60)
    second.result(60)
    assert entered[:18] in (["x", "y"] * 9, ["y", "x"] * 9)


@pytest.mark.parametrize(
    ("prolong", "least"), [(Mutex.reacquire, 20), (lambda lock: lock.extend(20), 40)]
)
def test_a_grant_that_is_reacquired_or_extended_has_its_full_lease(prolong, least):
    def hold():
        with locks.lock("a", timeout=30) as lock:
            prolong(lock)
            return locks.get("a").ttl

    with locks.lock("a"):
        waiter = start(hold)
        waiting(locks, "a", 1)
    assert least < waiter.result(60) <= least + 10


def test_a_hand_over_does_not_wait_for_the_next_slice(manager):
    took = []
    for _ in range(5):
        with manager.lock("a"):
            waiter = start(lambda: manager.lock("a").acquire() and time.monotonic())
            waiting(manager, "a", 1)
            released = time.monotonic()
        took.append(waiter.result(60) - released)
        manager.force_release("a")
    assert sorted(took)[2] < 0.2


def test_who_waits_asks_little(redis_server):
    with locks.lock("a"), commands(redis_server) as called:
        assert locks.lock("a").acquire(blocking_timeout=0.9) is False
    assert called["blpop"] <= 3
    assert called["evalsha"] <= 4


@pytest.mark.parametrize("timeout", [0.02, 0.1, 30])
def test_who_waits_without_renewal_gets_a_full_lease(manager, timeout):
    lock = manager.lock("a", timeout=timeout, auto_renewal=False)
    seen = []

    def hold():
        assert lock.acquire()
        seen.append((manager.get("a"), lock.lost))

    with manager.lock("a"):
        waiter = start(hold)
        waiting(manager, "a", 1)
    waiter.result(60)
    [(info, lost)] = seen
    if not lost:
        assert info.timeout == timeout
        assert 0 < info.ttl <= timeout
    if timeout == 30:
        assert info.ttl > 20
        manager.force_release("a")
    free(manager, "a")
