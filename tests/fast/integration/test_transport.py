"""Locks use connections of the client's pool, and never one with an unread reply."""

import signal
import threading
import time
from contextlib import suppress
from itertools import count

import pytest
import redis.asyncio
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, TimeoutError
from redis.retry import Retry

from django_redislock import Lock
from django_redislock.backends.pools import AsyncLockPool
from django_redislock.engine import transport
from django_redislock.engine.transport import call, get_connection
from testproject.settings import redis_database
from tests.faults.proxy import Proxy
from tests.lock_tools import hanging, interrupt_at, start, within
from tests.tools import wait_until

PING = [("PING",)]


@pytest.fixture
def client():
    """A client with one connection and without retries."""
    pool = redis.ConnectionPool.from_url(
        redis_database(0), retry=Retry(NoBackoff(), 0), max_connections=1
    )
    with redis.Redis(connection_pool=pool) as client:
        yield client
    pool.disconnect()


@pytest.fixture
def connection_id(client):
    """Return the id of the client's connection on the server."""
    with Lock(client, "first", timeout=30):
        pass
    return client.client_id()


def use(client):
    lock = Lock(client, "x", timeout=30)
    assert lock.acquire()
    assert lock.owned()
    lock.release()


def is_free(client):
    """Return whether the only connection is free and has no unread reply."""
    return call(client, PING, urgent=True) == [b"PONG"]


def becomes_free(client):
    """Return whether the connection is free. After an interrupt it may arrive a moment later."""
    try:
        return is_free(client)
    except ConnectionError:
        return False


def test_all_requests_share_one_connection(client, connection_id):
    client.set("y", 1)
    use(client)
    assert client.getdel("y") == b"1"
    assert client.client_id() == connection_id


def test_an_idle_connection_that_the_server_closed_is_replaced(
    client, connection_id, redis_server
):
    redis_server.client_kill_filter(_id=connection_id)
    use(client)
    assert client.client_id() > connection_id


def test_an_unread_reply_of_another_user_is_not_mistaken_for_a_lock(client, connection_id):
    connection = get_connection(client.connection_pool)
    connection.send_command("ECHO", "1")
    assert connection.can_read(60)
    client.connection_pool.release(connection)

    use(client)

    assert client.client_id() > connection_id


def test_a_connection_whose_reply_did_not_arrive_in_time_is_closed(own_server):
    with redis.Redis.from_url(own_server.url) as client:
        use(client)
        with hanging(own_server), pytest.raises(TimeoutError):
            call(client, [("ECHO", "late")], 0.05)
        assert call(client, PING) == [b"PONG"]


@pytest.mark.parametrize("limit", [0.3, 0])
def test_connecting_takes_no_longer_than_the_limit(own_server, limit):
    with Proxy("127.0.0.1", own_server.port) as proxy:
        proxy.freeze()
        with redis.Redis.from_url(proxy.through(own_server.url)) as client:
            with within(2), pytest.raises(TimeoutError):
                call(client, PING, limit)
            proxy.thaw()
            assert call(client, PING) == [b"PONG"]


def test_an_error_and_undecodable_bytes_are_replies_like_others(redis_server):
    redis_server.set("y", b"\xff")
    with redis.Redis.from_url(redis_database(0), decode_responses=True) as client:
        error, *others = call(client, [("LPOP", "y"), ("GET", "y"), ("ECHO", "ü")])
    assert isinstance(error, redis.ResponseError)
    assert others == [b"\xff", "ü".encode()]
    redis_server.delete("y")


@pytest.mark.parametrize("limit", [None, 60])
def test_an_exhausted_pool_is_waited_for(client, limit, monkeypatch):
    pool = client.connection_pool
    taken = get_connection(pool)
    with within(1), pytest.raises(ConnectionError) as caught:
        call(client, PING, limit, urgent=True)
    assert transport.is_exhausted(caught.value)
    waits = threading.Event()
    pause = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: (waits.set(), pause(seconds)))
    waiting = start(lambda: call(client, PING, limit))
    waits.wait(60)
    pool.release(taken)
    assert waiting.result(60) == [b"PONG"]


@pytest.mark.parametrize("limit", [None, 60])
def test_an_interrupt_at_any_step_leaves_the_connection_to_others(client, limit):
    lock, places = Lock(client, "x", timeout=30), set()
    assert lock.acquire()
    for step in count(1):
        asked = interrupt_at(step, call.__code__, transport.__file__)
        with suppress(KeyboardInterrupt), asked as struck:
            call(client, [("ECHO", "unread")], limit)
        wait_until(lambda: becomes_free(client))
        if not struck:
            break
        places |= {*struck}
    assert {"call", "_attempt"} <= places
    lock.release()


def test_a_connection_that_arrives_after_an_interrupt_goes_back(proxied_client):
    client, proxy = proxied_client
    handshake = proxy.delay_reply(lambda command: True, 1)
    thread, before = threading.get_ident(), signal.signal(signal.SIGUSR1, interrupt)

    def strike():
        wait_until(handshake.has_begun)
        signal.pthread_kill(thread, signal.SIGUSR1)

    try:
        start(strike)
        with pytest.raises(KeyboardInterrupt):
            call(client, PING, 60)
    finally:
        signal.signal(signal.SIGUSR1, before)
    wait_until(lambda: becomes_free(client))


def interrupt(number, frame):
    raise KeyboardInterrupt


@pytest.fixture
def proxied_client(own_server):
    with Proxy("127.0.0.1", own_server.port) as proxy:
        pool = redis.ConnectionPool.from_url(proxy.through(own_server.url), max_connections=1)
        with redis.Redis(connection_pool=pool) as client:
            yield client, proxy
        pool.disconnect()


async def test_an_async_pool_that_was_reset_makes_new_connections(own_server):
    pool = AsyncLockPool.from_url(own_server.url)
    async with redis.asyncio.Redis(connection_pool=pool) as client:
        await transport.acall(client, PING)
        await pool.kept[0].disconnect()
        pool.reset()
        assert await transport.acall(client, PING) == [b"PONG"]
        await pool.disconnect()
