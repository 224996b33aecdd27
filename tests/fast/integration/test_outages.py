"""Waiters and holders in an outage: the server is stopped, restarted, full, or read-only."""

import asyncio
import logging
import time
from contextlib import contextmanager
from functools import partial

import pytest
from redis.exceptions import (
    AuthenticationError,
    ConnectionError,
    OutOfMemoryError,
    RedisError,
    ResponseError,
)

from django_redislock import LockLost
from django_redislock.engine import renewer
from django_redislock.engine.outages import is_outage
from tests.lock_tools import free, lease_of, start, waiting, within
from tests.tools import wait_until

LONG = 60
"""A `blocking_timeout` that only a bug can exceed."""

EVENT = "Waiting for lock through an outage"


def acquire(mode, lock, **options):
    """Acquire a lock in sync or async code, and release it. Return whether it was acquired."""

    async def use():
        acquired = await lock.aacquire(**options)
        if acquired:
            await lock.arelease()
        return acquired

    if mode == "async":
        return asyncio.run(use())
    acquired = lock.acquire(**options)
    if acquired:
        lock.release()
    return acquired


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.WARNING, "django_redislock")

    def messages():
        return [text for each in caplog.records if EVENT in (text := each.getMessage())]

    return messages


@contextmanager
def stopped(server, client):
    server.stop()
    yield
    server.start()


@contextmanager
def read_only(server, client):
    client.replicaof("127.0.0.1", 1)
    yield
    client.replicaof("NO", "ONE")


@contextmanager
def without_replicas(server, client):
    client.config_set("min-replicas-to-write", 1)
    yield
    client.config_set("min-replicas-to-write", 0)


@pytest.mark.parametrize(
    ("mode", "outage"), [("sync", stopped), ("async", read_only), ("sync", without_replicas)]
)
def test_waiters_acquire_after_an_outage(own_locks, own_server, own_redis, logged, mode, outage):
    """One whose time is over raises the last error."""
    holder = own_locks.lock("a", timeout=LONG)
    assert holder.acquire()
    began = time.monotonic()
    limited, unlimited, impatient = [
        start(partial(acquire, mode, own_locks.lock("a", blocking_timeout=limit)))
        for limit in (LONG, None, 2)
    ]
    waiting(own_locks, "a", 3)
    with outage(own_server, own_redis):
        with pytest.raises((ConnectionError, ResponseError)):
            impatient.result(60)
        assert time.monotonic() - began > 1.9
        assert not limited.done()
        assert not unlimited.done()
    try:
        holder.release()
    except LockLost:  # the restarted server has lost its data
        assert outage is stopped
    assert limited.result(60)
    assert unlimited.result(60)
    assert logged()[0].startswith(f"{EVENT}: name='a' waiters=")
    free(own_locks, "a")


def test_only_a_call_with_a_limit_may_begin_in_an_outage(own_locks, own_server, logged):
    lock = own_locks.lock("a", timeout=LONG)
    with stopped(own_server, None):
        for options in ({}, {"blocking": False}):
            with within(20), pytest.raises(RedisError):
                lock.acquire(**options)
        waiter = start(partial(acquire, "sync", lock, blocking_timeout=LONG))
        wait_until(lambda: logged() or waiter.done())
    assert waiter.result(60)
    free(own_locks, "a")


# What does not pass


def test_a_right_that_is_withdrawn_is_an_error_at_once(alias_on, own_server, own_redis):
    own_redis.execute_command("ACL", "SETUSER", "app", "on", ">s3cret", "~*", "+@all")
    own = alias_on(f"redis://app:s3cret@127.0.0.1:{own_server.port}/0")
    direct = alias_on(own_server.url, alias="direct")
    holder = direct.lock("a", timeout=LONG)
    assert holder.acquire()
    waiter = start(own.lock("a", blocking_timeout=LONG).acquire)
    waiting(direct, "a", 1)
    own_redis.execute_command("ACL", "SETUSER", "app", "resetpass", ">changed")
    own_redis.execute_command("CLIENT", "KILL", "USER", "app")
    with within(20), pytest.raises(AuthenticationError):
        waiter.result(60)
    holder.release()
    free(direct, "a")


PASSING = """\
LOADING Redis is loading the dataset in memory
READONLY You can't write against a read only replica.
NOREPLICAS Not enough good replicas to write.
CLUSTERDOWN Hash slot not served
MOVED 3999 127.0.0.1:6381
ERR max number of clients reached
ERR Error running script (call to f_0): @user_script:1: -NOREPLICAS Not enough good replicas"""

LASTING = """\
OOM command not allowed when used memory > 'maxmemory'.
MISCONF Errors writing to the AOF file: No space left on device
WRONGPASS invalid username-password pair or user is disabled.
NOPERM this user has no permissions to run the 'blpop' command
ERR unknown command 'BLPOP'
BUSYGROUP Consumer Group name already exists"""


@pytest.mark.parametrize(("replies", "passes"), [(PASSING, True), (LASTING, False)])
def test_an_error_reply_is_an_outage_only_if_it_passes(redis_server, replies, passes):
    for reply in replies.splitlines():
        with pytest.raises(RedisError) as caught:
            redis_server.eval("return redis.error_reply(ARGV[1])", 0, reply)
        assert is_outage(caught.value) is passes, reply


# Places, and what was granted in the meantime


def test_waiters_keep_their_order(alias_on, own_server, logged, proxied):
    own, proxy = proxied
    direct = alias_on(own_server.url, alias="direct")
    entered = []

    def enter(number):
        with own.lock("a", timeout=LONG, blocking_timeout=LONG):
            entered.append(number)

    assert direct.lock("a", timeout=LONG).acquire()
    threads = []
    for number in range(5):
        threads.append(start(enter, number))
        waiting(direct, "a", number + 1)
    proxy.refuse()
    proxy.cut()
    wait_until(logged)
    proxy.accept()
    waiting(direct, "a", 5)
    direct.force_release("a")
    for each in threads:
        each.result(60)
    assert entered == sorted(entered)
    assert len(logged()) == 1


def test_a_cancelled_task_leaves_an_outage_at_once(own_locks, own_server, logged):
    async def use():
        lock = own_locks.lock("a", timeout=LONG)
        waiter = asyncio.create_task(lock.aacquire())
        await asyncio.to_thread(waiting, own_locks, "a", 1)
        own_server.stop()
        await asyncio.to_thread(wait_until, logged)
        waiter.cancel()
        with within(20), pytest.raises(asyncio.CancelledError):
            await waiter

    assert own_locks.lock("a", timeout=LONG).acquire()
    asyncio.run(use())
    own_server.start()
    free(own_locks, "a")


# Holders


def test_holders_and_queries_fail_at_once(own_locks, own_server):
    lock = own_locks.lock("a", timeout=LONG, blocking_timeout=LONG)
    assert lock.acquire()
    own_server.stop()
    for ask in (lambda: lock.extend(1), lock.locked, own_locks.count, lock.release):
        with within(20), pytest.raises(ConnectionError):
            ask()


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
    with pytest.raises((LockLost, ConnectionError)):
        lock.release()
    assert len(lost) == 1


def test_a_release_is_repeated_until_the_server_accepts_it(
    own_locks, own_redis, monkeypatch, moving_clock
):
    # An error must not count as the reply that the lock is not held, which ends the repetitions.
    monkeypatch.setattr(renewer, "LATE_REQUEST_SECONDS", 0)
    lock = own_locks.lock("a", timeout=60)
    assert lock.acquire()
    with without_replicas(None, own_redis):
        with pytest.raises(ResponseError, match="NOREPLICAS"):
            lock.release()
        moving_clock.forward(2)
    assert own_locks.get("a")
    moving_clock.forward(2)
    assert own_locks.get("a") is None


def test_a_full_server_serves_holders(own_locks, own_redis, moving_clock):
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
    with within(20), pytest.raises((OutOfMemoryError, ResponseError), match="maxmemory"):
        own_locks.lock("d", blocking_timeout=LONG).acquire()
    handed_over.release()
    assert waiter.result(60)
    assert own_locks.force_release("c") == 1
    lock.release()
    assert own_locks.count() == 0
