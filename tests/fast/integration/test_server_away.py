"""Redis is stopped, restarted, full, or forgets the scripts. Waiters are in test_outages."""

import asyncio

import pytest
from redis.exceptions import ConnectionError, ResponseError

from django_redislock import LockLost
from django_redislock.engine import renewer
from tests.lock_tools import lease_of, start, waiting


def test_a_lock_is_lost_at_the_end_of_its_lease_if_the_server_is_unreachable(
    own_locks, own_server, moving_clock
):
    lost = []
    lock = own_locks.lock("a", timeout=30, on_lost=lost.append)
    assert lock.acquire()
    lease = lease_of(lock)
    own_server.stop()
    moving_clock.forward(29)
    assert lost == []
    assert lease.due <= lease.deadline
    moving_clock.forward(1)
    assert lost == [lock]
    assert lock.lost
    with pytest.raises((LockLost, ConnectionError)):
        lock.release()
    assert len(lost) == 1


def test_a_release_is_repeated_as_soon_as_the_server_accepts_it(
    own_locks, own_redis, monkeypatch, moving_clock
):
    # An error must not count as the reply that the lock is not held, which ends the repetitions.
    monkeypatch.setattr(renewer, "LATE_REQUEST_SECONDS", 0)
    lock = own_locks.lock("a", timeout=60)
    assert lock.acquire()
    own_redis.config_set("min-replicas-to-write", 1)
    with pytest.raises(ResponseError, match="NOREPLICAS"):
        lock.release()
    moving_clock.forward(2)
    own_redis.config_set("min-replicas-to-write", 0)
    assert own_locks.get("a")
    moving_clock.forward(2)
    assert own_locks.get("a") is None


def test_a_release_that_failed_does_not_shorten_at_least_for(own_locks, own_redis, moving_clock):
    lock = own_locks.lock("a", timeout=300, at_least_for=60)
    assert lock.acquire()
    token = lock.token
    own_redis.config_set("min-replicas-to-write", 1)
    with pytest.raises(ResponseError, match="NOREPLICAS"):
        lock.release()
    own_redis.config_set("min-replicas-to-write", 0)
    moving_clock.forward(2)
    info = own_locks.get("a")
    assert (info.state, info.token) == ("cooldown", token)
    assert 50 < info.ttl <= 60
    assert own_locks.force_release("a") == 1


def test_a_release_is_repeated_as_long_as_redis_keeps_an_extended_lease(
    own_locks, own_redis, moving_clock
):
    lock = own_locks.lock("a", timeout=2)
    assert lock.acquire()
    lock.extend(300)
    own_redis.config_set("min-replicas-to-write", 1)
    with pytest.raises(ResponseError, match="NOREPLICAS"):
        lock.release()
    moving_clock.forward(100)
    own_redis.config_set("min-replicas-to-write", 0)
    moving_clock.forward(2)
    assert own_locks.get("a") is None


async def test_a_restarted_server_is_used_again_at_once(own_locks, own_server):
    fences = []
    for _ in range(2):
        async with own_locks.lock("a", timeout=300) as lock:
            fences.append(lock.fence_token)
        with own_locks.lock("a") as lock:
            fences.append(lock.fence_token)
        own_server.stop()
        own_server.start()
        await asyncio.sleep(0.1)  # until asyncio notices that the connection was closed
    async with own_locks.lock("a", timeout=300) as lock:
        assert await lock.aowned()
    assert sorted(set(fences)) == fences


# A server that is full


def test_a_full_server_serves_holders_and_refuses_new_clients(own_locks, own_redis, moving_clock):
    lock, handed_over = own_locks.lock("a", timeout=30), own_locks.lock("c", timeout=30)
    for each in (lock, handed_over):
        assert each.acquire()
    waiter = start(own_locks.lock("c", timeout=30).acquire)
    waiting(own_locks, "c", 1)
    own_redis.config_set("maxmemory", 1)
    moving_clock.forward(20)
    moving_clock.forward(20)
    assert lock.owned()
    assert lock.extend(10)
    with pytest.raises(ResponseError, match="maxmemory"):
        own_locks.lock("d").acquire()
    handed_over.release()
    assert waiter.result(60)
    assert own_locks.force_release("c") == 1
    lock.release()
    assert own_locks.count() == 0
