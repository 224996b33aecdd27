"""Waiters acquire a lock in the order in which they arrive."""

import pytest

from django_redislock import locks
from django_redislock.lock_types import Mutex
from tests.lock_tools import commands, free, start, waiting


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
