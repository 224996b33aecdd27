"""Locks use connections of their own, and never one with an unread reply."""

import asyncio
import gc
import time
from contextlib import suppress
from functools import partial
from itertools import count

import pytest
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import TimeoutError
from redis.retry import Retry

from django_redislock import AsyncLock, Lock, clock
from django_redislock.engine import (
    loop_transport,
    protocol,
    renewer,
    thread_transport,
    transport,
)
from django_redislock.engine.runners import arun, run
from django_redislock.engine.transport import acall, call
from django_redislock.keys import Keys
from django_redislock.lock_types import QueueLock
from django_redislock.lua import ACQUIRE, FORCE, RELEASE, RENEW
from testproject.settings import redis_database
from tests.faults.proxy import Proxy, runs
from tests.lock_tools import (
    commands,
    hanging,
    interrupt_at,
    lease_of,
    start,
    until,
    warnings_of_block,
    within,
)
from tests.servers import Node
from tests.tools import wait_until

PING = [("PING",)]


@pytest.fixture
def client():
    pool = redis.ConnectionPool.from_url(
        redis_database(0), retry=Retry(NoBackoff(), 0), max_connections=1
    )
    with redis.Redis(connection_pool=pool) as client:
        yield client
    pool.disconnect()


def client_id(client):
    [reply] = call(client, [("CLIENT", "ID")])
    return reply


def use(client):
    lock = Lock(client, "x", timeout=30)
    assert lock.acquire()
    assert lock.owned()
    lock.release()


def test_a_thread_has_one_connection_which_is_replaced_if_the_server_closes_it(
    client, redis_server
):
    before = client_id(client)
    use(client)
    assert client_id(client) == before
    redis_server.client_kill_filter(_id=before)
    use(client)
    assert client_id(client) > before


class PoolOfTheProject(redis.ConnectionPool):
    def make_connection(self):
        return super().make_connection()


def test_a_pool_that_counts_its_connections_makes_any_number_for_locks(own_server, own_redis):
    pool = PoolOfTheProject.from_url(own_server.url, max_connections=2)
    with redis.Redis(connection_pool=pool) as client:
        for _ in range(4):
            assert call(client, PING) == [b"PONG"]
            own_redis.client_kill_filter(_type="normal", skipme=True)


def test_a_connection_whose_reply_does_not_arrive_in_time_is_closed(own_server):
    with Proxy("127.0.0.1", own_server.port) as proxy:
        proxy.freeze()
        with redis.Redis.from_url(proxy.through(own_server.url)) as client:
            with within(4), pytest.raises(TimeoutError):  # while it connects
                call(client, PING, 0.3)
            proxy.thaw()
            use(client)
            with hanging(own_server), pytest.raises(TimeoutError):
                call(client, [("ECHO", "late")], 0.05)
            assert call(client, PING) == [b"PONG"]


# A limited number of connections


def blocked(client, url):
    """Block the only connection of a client, and return the future of that call."""
    call(client, PING)
    with redis.Redis.from_url(url) as other:
        before = other.info("clients")["blocked_clients"]
        blocking = start(lambda: call(client, [("BLPOP", "nothing", 0)], 60))
        wait_until(lambda: other.info("clients")["blocked_clients"] > before)
    return blocking


def test_a_call_waits_for_a_free_connection(client, redis_server):
    blocking = blocked(client, redis_database(0))
    waiting = start(lambda: call(client, PING))
    with within(20), pytest.raises(TimeoutError, match="All 1 connections for locks were in use"):
        call(client, PING, 0.1)
    redis_server.rpush("nothing", "something")
    assert waiting.result(60) == [b"PONG"]
    assert blocking.result(60) == [[b"nothing", b"something"]]


def test_threads_use_no_more_connections_than_the_setting_allows(own_server, own_redis, settings):
    settings.REDISLOCK_MAX_CONNECTIONS = 3
    with redis.Redis.from_url(own_server.url) as client, commands(own_redis) as called:
        turns = [start(lambda: [call(client, PING) for _ in range(20)]) for _ in range(10)]
        for each in turns:
            assert each.result(60) == [[b"PONG"]] * 20
    assert called["hello"] + called["client|setinfo"] > 0
    assert own_redis.info("clients")["connected_clients"] <= 3 + 1


def test_a_process_that_was_forked_without_hooks_has_connections_of_its_own(client, monkeypatch):
    link = thread_transport.ThreadLink()
    before = link.connections(client)
    assert link.connections(client) is before
    monkeypatch.setattr(thread_transport.os, "getpid", lambda: -1)
    assert link.connections(client) is not before


# Interrupts


def test_an_interrupt_at_any_step_leaves_the_connection_to_others(client):
    lock, places = Lock(client, "x", timeout=30), set()
    assert lock.acquire()
    for step in count(1):
        asked = interrupt_at(step, call.__code__, transport.__file__, thread_transport.__file__)
        with suppress(KeyboardInterrupt), asked as struck:
            call(client, [("ECHO", "unread")])
        if not struck:
            break
        gc.collect()  # of the frames in the traceback of the interrupt
        assert call(client, PING, 10) == [b"PONG"], struck
        places |= {*struck}
    assert {"call", "_exchange"} <= places
    lock.release()


# Tasks of an event loop


async def test_many_calls_are_in_flight_on_one_connection(own_server, own_redis):
    """A call that is cancelled or blocks disturbs no other."""

    async def has_blocked():
        return own_redis.info("clients")["blocked_clients"] == 1

    client = redis.asyncio.Redis.from_url(own_server.url)
    calls = [asyncio.create_task(acall(client, [("ECHO", f"{n}")])) for n in range(500)]
    await asyncio.sleep(0)
    for each in calls[::2]:
        each.cancel()
    await asyncio.wait(calls)
    assert all(each.cancelled() for each in calls[::2])
    assert [each.result() for each in calls[1::2]] == [[f"{n}".encode()] for n in range(1, 500, 2)]
    assert own_redis.info("clients")["connected_clients"] <= 2
    blocking = asyncio.create_task(acall(client, [("BLPOP", "nothing", 30)], 60))
    await until(has_blocked)
    assert await acall(client, PING, 5) == [b"PONG"]
    own_redis.rpush("nothing", "something")
    assert await blocking == [[b"nothing", b"something"]]


def test_a_call_that_is_cancelled_while_it_connects_leaves_nothing(own_server, own_redis):
    async def use(proxy):
        client = redis.asyncio.Redis.from_url(proxy.through(own_server.url))
        asking = asyncio.create_task(acall(client, PING))
        await asyncio.to_thread(wait_until, handshake.has_begun)
        asking.cancel()
        await until(is_connected)

    async def is_connected():
        return any(each["cmd"] == "client|setinfo" for each in own_redis.client_list())

    with Proxy("127.0.0.1", own_server.port) as proxy, warnings_of_block() as warned:
        handshake = proxy.delay_reply(lambda command: True, 0.1)
        asyncio.run(use(proxy))
    assert warned == []


async def test_calls_on_a_connection_that_breaks_are_sent_again(own_server):
    """Those without a reply in time do not disturb later ones."""
    with Proxy("127.0.0.1", own_server.port) as proxy:
        async with redis.asyncio.Redis.from_url(proxy.through(own_server.url)) as client:
            await acall(client, PING)
            lost = proxy.drop_reply(lambda command: command[0] == b"ECHO")
            calls = [acall(client, [("ECHO", f"{n}")], 30) for n in range(20)]
            assert await asyncio.gather(*calls) == [[f"{n}".encode()] for n in range(20)]
            assert lost.is_done()
            proxy.freeze()
            late = [acall(client, [("ECHO", "late")], 0.2) for _ in range(10)]
            outcomes = await asyncio.gather(*late, return_exceptions=True)
            assert all(isinstance(each, TimeoutError) for each in outcomes)
            proxy.thaw()
            assert await acall(client, [("ECHO", "next")], 30) == [b"next"]


async def test_a_connection_is_replaced_if_sentinels_have_found_another_primary(own_server):
    async with redis.asyncio.Redis.from_url(own_server.url) as client:
        first = await acall(client, [("CLIENT", "ID")])
        assert await acall(client, [("CLIENT", "ID")]) == first
        client.connection_pool.master_address = ("127.0.0.1", own_server.port)
        assert await acall(client, [("CLIENT", "ID")]) != first


async def test_an_event_loop_does_not_wait_long_for_a_connection(own_server, monkeypatch):
    monkeypatch.setattr(loop_transport, "CONNECT_TIMEOUT_SECONDS", 0.1)
    client = redis.asyncio.Redis.from_url(own_server.url, retry=AsyncRetry(NoBackoff(), 0))
    with hanging(own_server), pytest.raises(TimeoutError, match="while connecting"):
        await acall(client, PING, 20)


async def test_tasks_that_an_interrupt_made_unknown_disturb_nothing(own_server):
    """It may strike after the task was started, and before the connection knows it."""
    async with redis.asyncio.Redis.from_url(own_server.url) as client:
        link = loop_transport.LoopLink()
        connection = link.connection(client)
        await asyncio.wait_for(connection._send_all(), 20)
        send = partial(connection.call, PING, 20, once=False, urgent=False)
        await send()
        used = connection._stream
        connection._stream_ended(loop_transport._Stream(None, None), ConnectionError())
        assert await send() == [b"PONG"]
        assert connection._stream is used
        await link.aclose()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of redis-py 5
def test_a_loop_that_is_closed_with_its_tasks_logs_nothing(own_locks, caplog):
    with warnings_of_block():  # of the connections, which the loop leaves open
        loop = asyncio.new_event_loop()
        loop.run_until_complete(own_locks.acount())
        loop.close()
        del loop
        assert asyncio.run(own_locks.acount()) == 0  # the next loop forgets it
        gc.collect()  # of the tasks, and at the end of the block of what they refer to
    assert "destroyed" not in caplog.text


def test_locks_are_released_when_all_tasks_of_a_loop_are_cancelled(own_server, own_redis):
    async def hold(name, client):
        async with AsyncLock(client, name, timeout=60):
            inside.append(name)
            await asyncio.sleep(60)

    async def use():
        client = redis.asyncio.Redis.from_url(own_server.url)
        tasks.extend(asyncio.create_task(hold(f"a{number}", client)) for number in range(20))
        await until(all_inside)

    async def all_inside():
        return len(inside) == len(tasks)

    inside, tasks = [], []
    asyncio.run(use())
    assert own_redis.keys("*:lock:*") == []


# The pool of the client, and the connections of the renewal


def connected(own_redis):
    return len(own_redis.client_list()) - 1


def test_a_holder_renews_and_releases_with_an_exhausted_pool(own_server, own_redis, moving_clock):
    pool = redis.BlockingConnectionPool.from_url(own_server.url, max_connections=2, timeout=0.5)
    with redis.Redis(connection_pool=pool) as client:
        lock = Lock(client, "a", timeout=30)
        assert lock.acquire()
        users = [start(client.blpop, ["busy"], 60) for _ in range(2)]
        wait_until(lambda: own_redis.info("clients")["blocked_clients"] == 2)
        for _ in range(3):
            moving_clock.forward(15)
        assert not lock.lost
        lock.release()
        own_redis.rpush("busy", 1, 2)
        for user in users:
            user.result(60)
        assert not lock.locked()


def test_an_idle_renewer_closes_its_connection_and_the_next_lease_starts_another(
    own_locks, own_redis, monkeypatch
):
    async def so_many(count):
        await until(lambda: asyncio.to_thread(lambda: connected(own_redis) == count))

    async def use():
        for _ in range(2):
            async with own_locks.lock("a", timeout=1.5):
                await so_many(3)  # one is of the thread
            await so_many(2)

    monkeypatch.setattr(renewer, "RENEWER_IDLE_SECONDS", 0.05)
    for _ in range(2):
        with own_locks.lock("a", timeout=1.5):
            assert connected(own_redis) == 1
            wait_until(lambda: connected(own_redis) == 2)
        wait_until(lambda: connected(own_redis) == 1)
    asyncio.run(use())
    wait_until(lambda: connected(own_redis) == 1)


# A reply that has arrived counts, even if the process was too busy to read it in time

LIMIT = 0.5
"""Time limit of `acquire(blocking_timeout=0.1)` for a reply."""


@pytest.mark.hurried
def test_a_reply_that_arrived_while_the_event_loop_was_busy_counts(alias_on, own_server):
    async def use():
        delay = proxy.delay_reply(runs(ACQUIRE), 0.2)
        lock = manager.lock("a", timeout=30)
        asking = asyncio.create_task(lock.aacquire())
        await asyncio.to_thread(wait_until, delay.has_begun)
        wait_until(delay.is_done)  # it blocks the event loop
        time.sleep(2 * LIMIT)  # noqa: ASYNC251
        assert await asking
        await lock.arelease()
        await asyncio.sleep(1.1 * LIMIT)  # until the extra time of the request is over

    with Proxy("127.0.0.1", own_server.port) as proxy:
        manager = alias_on(proxy.through(own_server.url), socket_timeout=LIMIT)
        with manager.lock("a"):  # the server knows the scripts
            manager.count()
        asyncio.run(use())


@pytest.mark.hurried
async def test_a_busy_event_loop_does_not_hide_that_redis_does_not_respond(own_locks, own_server):
    await own_locks.acount()
    with hanging(own_server):
        task = asyncio.create_task(own_locks.lock("a").aacquire(blocking_timeout=0.1))
        await asyncio.sleep(0.05)
        time.sleep(2 * LIMIT)  # noqa: ASYNC251
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(task, 10)


# A command whose reply is lost may be sent twice, unless that has another result


@pytest.fixture(scope="module")
def node():
    with Node() as node:
        for script in (ACQUIRE, FORCE, RELEASE, RENEW):
            node.ask("SCRIPT", "LOAD", script.source)  # an unknown script would do nothing
        yield node


@pytest.fixture
def proxy(node):
    with Proxy(*node.address) as proxy:
        yield proxy


@pytest.fixture(params=["retries", "does not retry"])
def retrying(request, proxy):
    options = {"retry": Retry(NoBackoff(), 1 if request.param == "retries" else 0)}
    with redis.Redis.from_url(proxy.url, **options) as client:
        Lock(client, "a").locked()  # a new connection is not replaced
        yield client
        client.connection_pool.disconnect()


def test_an_acquisition_a_renewal_and_a_release(proxy, retrying):
    lock = Lock(retrying, "a", timeout=30)
    lost = proxy.drop_reply(runs(ACQUIRE))
    assert lock.acquire()
    assert lost.is_done()
    lost = proxy.drop_reply(runs(RENEW))
    lock.extend(50)
    assert lost.is_done()
    lease = lease_of(lock)
    assert 75 < lease.deadline - clock.now() <= 80
    lost = proxy.drop_reply(runs(RELEASE))
    lock.release()
    assert lost.is_done()
    assert not lock.locked()


@pytest.fixture
def granted(retrying):
    first, second = (Lock(retrying, "a", timeout=30) for _ in range(2))
    keys = Keys("redislock").of("a")
    assert first.acquire()
    waiter = start(second.acquire)
    wait_until(lambda: retrying.exists(keys.queue))
    yield keys
    assert waiter.result(60)
    assert first.locked()
    assert len(run(retrying, protocol.force_release(keys, None))) == 1


def test_a_forced_release_is_not_repeated(proxy, retrying, granted):
    """A repetition would release the waiter that was granted the lock by the first one."""
    lost = proxy.drop_reply(runs(FORCE))
    with pytest.raises(redis.ConnectionError):
        run(retrying, protocol.force_release(granted, None))
    assert lost.is_done()


def test_the_takeover_of_a_hold_that_is_gone_is_not_repeated(proxy, retrying):
    """The reply to a repetition would be that the hold was taken over."""
    queue_lock = QueueLock(Lock(retrying, "a"), "a-token", ("shop.sync", "an-id"))
    lost = proxy.drop_reply(runs(ACQUIRE))
    with pytest.raises(redis.ConnectionError):
        queue_lock.take_over("gone", 30)
    assert lost.is_done()
    wait_until(lambda: not queue_lock.lock.locked())


@pytest.mark.parametrize("idle", [True, False])
def test_a_forced_release_is_not_repeated_in_async(proxy, granted, idle):
    """The connection is idle, or new."""

    async def force():
        errors = [redis.ConnectionError]  # redis-py 5 retries on no others by default
        retry = {"retry": AsyncRetry(NoBackoff(), 1), "retry_on_error": errors}
        async with redis.asyncio.Redis.from_url(proxy.url, **retry) as client:
            if idle:
                await client.ping()
            lost = proxy.drop_reply(runs(FORCE))
            with pytest.raises(redis.ConnectionError):
                await arun(client, protocol.force_release(granted, None))
            assert lost.is_done()

    asyncio.run(force())
