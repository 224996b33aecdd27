"""The reader of an inbox with errors, a signal handler, another client, and few connections."""

import asyncio
import signal
from functools import partial

import pytest
import redis
from redis.exceptions import ResponseError, TimeoutError

from django_redislock import AsyncLock, Lock, locks
from django_redislock.engine import inbox
from tests.lock_tools import hanging, start, until, waiting
from tests.tools import wait_until


@pytest.mark.parametrize("waiter", ["thread", "task"])
def test_an_error_of_the_reader_reaches_a_waiter(own_locks, own_redis, waiter):
    """The user of the server may not read inboxes."""

    def wait():
        lock = own_locks.lock("a")
        return lock.acquire() if waiter == "thread" else asyncio.run(lock.aacquire())

    user = own_redis.acl_whoami()
    own_redis.execute_command("ACL", "SETUSER", user, "-blpop")
    try:
        with own_locks.lock("a"), pytest.raises(ResponseError, match=r"blpop|permission"):
            start(wait).result(60)
    finally:
        own_redis.execute_command("ACL", "SETUSER", user, "+blpop")


def test_a_signal_handler_waits_in_the_thread_that_reads():
    outcomes = []

    def wait_too(*_):
        outcomes.append(locks.lock("b").acquire(blocking_timeout=0.2))
        locks.force_release("a")

    before = signal.signal(signal.SIGALRM, wait_too)
    try:
        held = [start(locks.lock(name, auto_renewal=False).acquire) for name in "ab"]
        assert all(each.result(60) for each in held)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with locks.lock("a"):
            assert outcomes == [False]
    finally:
        signal.signal(signal.SIGALRM, before)
        locks.force_release("b")


def test_clients_with_the_same_pool_take_turns_to_read(own_server, own_redis):
    pool = redis.ConnectionPool.from_url(own_server.url)
    for _ in range(2):
        client = redis.Redis(connection_pool=pool)
        with Lock(client, "a"):
            assert not Lock(client, "a", blocking_timeout=0.1).acquire()
    assert len(own_redis.client_list()) <= 4
    pool.disconnect()


@pytest.mark.parametrize("single", [True, False])
async def test_tasks_wait_with_one_client_after_another(own_server, monkeypatch, single):
    monkeypatch.setattr(inbox, "READER_IDLE_SECONDS", 0.05)
    for _ in range(2):
        options = {"single_connection_client": single}
        async with redis.asyncio.Redis.from_url(own_server.url, **options) as client:
            holder, other = (AsyncLock(client, "a", timeout=30) for _ in range(2))
            assert await holder.acquire()
            waits = asyncio.create_task(other.acquire(blocking_timeout=60))
            await until(lambda client=client: client.keys("*:queue:a"))
            await holder.release()
            assert await waits
            await client.delete(*await client.keys("*:lock:a"))
    await until(_reader_has_ended)


async def _reader_has_ended():
    return "redislock-inbox" not in {task.get_name() for task in asyncio.all_tasks()}


@pytest.mark.hurried
def test_a_thread_that_waits_has_a_time_limit_if_redis_does_not_respond(own_locks, own_server):
    with own_locks.lock("a"):
        waits = start(partial(own_locks.lock("a").acquire, blocking_timeout=1))
        waiting(own_locks, "a", 1)
        with hanging(own_server), pytest.raises(TimeoutError):
            waits.result(60)


def test_a_thread_that_waits_for_several_locks_gets_them_after_an_outage(
    own_locks, own_redis, caplog
):
    def hold():
        with own_locks.lock_many(["a", "b", "c"]) as lock:
            return set(lock.fence_tokens)

    assert own_locks.lock("c", timeout=60).acquire()
    waits = start(hold)
    waiting(own_locks, "c", 1)
    own_redis.config_set("min-replicas-to-write", 1)
    wait_until(lambda: "through an outage" in caplog.text)
    own_redis.config_set("min-replicas-to-write", 0)
    own_locks.force_release("c")
    assert waits.result(60) == {"a", "b", "c"}


@pytest.mark.hurried
async def test_a_call_that_waits_for_a_connection_has_a_time_limit(alias_on, own_server):
    manager = alias_on(own_server.url, socket_timeout=None)
    with hanging(own_server):
        calls = [manager.lock(str(number)).aacquire(blocking_timeout=0.1) for number in range(8)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(each) for each in outcomes} == {TimeoutError}
    await asyncio.to_thread(wait_until, lambda: manager.count() == 0)
