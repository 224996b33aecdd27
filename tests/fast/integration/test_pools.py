"""Connections of a client's pool, which locks take and put back by a shorter way."""

import select
import time
from contextlib import ExitStack, suppress
from itertools import count
from threading import Thread

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_redislock import Lock
from django_redislock.engine import exchange, pools
from testproject.settings import redis_database
from tests.lock_tools import fetching, interrupt_at, start
from tests.tools import wait_until


@pytest.fixture
def client():
    """One that repeats nothing."""
    with redis.Redis.from_url(redis_database(0), retry=Retry(NoBackoff(), 0)) as client:
        yield client


@pytest.fixture
def connection(client):
    """The only one, idle."""
    with Lock(client, "first", timeout=30):
        pass
    [connection] = client.connection_pool._available_connections
    return connection


def use(client):
    lock = Lock(client, "x", timeout=30)
    assert lock.acquire()
    assert lock.owned()
    lock.release()


def comes_in(connection):
    """Whether something does within seconds; it is not read."""
    return bool(select.select([connection._sock], [], [], 5)[0])


def is_all_there_is(client, connection):
    pool = client.connection_pool
    return pool._available_connections == [connection] and not pool._in_use_connections


def test_one_connection_serves_all(client, connection):
    socket = connection._sock

    use(client)

    assert is_all_there_is(client, connection)
    assert connection._sock is socket


def test_one_that_was_closed_meanwhile_is_connected_anew(client, connection, redis_server):
    redis_server.client_kill_filter(_id=client.client_id())
    assert comes_in(connection)  # its end

    use(client)

    assert is_all_there_is(client, connection)


def test_an_answer_that_nobody_read_is_not_taken_for_that_of_a_lock(client, connection):
    connection.send_command("ECHO", "1")
    assert comes_in(connection)

    use(client)

    assert is_all_there_is(client, connection)


def test_one_that_is_to_reconnect_does_so(client, connection):
    socket = connection._sock
    connection._should_reconnect = True  # redis-py, from its release 7 on

    use(client)

    known = hasattr(connection, "should_reconnect")
    assert (connection._sock is not socket) is known


def test_a_lock_finds_the_connection_that_a_cache_left_and_the_other_way_round(client, connection):
    client.set("y", 1)
    use(client)
    assert client.getdel("y") == b"1"

    assert is_all_there_is(client, connection)


def test_an_interrupt_at_any_step_before_a_closed_connection_is_replaced(client, connection):
    """The connection goes back to the pool, although it cannot be used as it is."""
    lock, places, pool = Lock(client, "x", timeout=30), set(), client.connection_pool
    for step in count(1):
        for each in pool._available_connections:
            each.disconnect()
        asked = interrupt_at(step, pools.idle_of.__code__, pools.__file__)
        with suppress(KeyboardInterrupt), asked as struck:
            lock.locked()
        assert is_all_there_is(client, connection), struck
        if not struck:
            break
        places |= {*struck}
    assert {"idle_of", "give_back"} <= places


def test_an_interrupt_at_any_step_leaves_the_connection_to_others(client, connection):
    lock, places = Lock(client, "x", timeout=30), set()
    files = exchange.__file__, pools.__file__
    for step in count(1):
        asked = interrupt_at(step, exchange._ask.__code__, *files)
        with suppress(KeyboardInterrupt), asked as struck:
            lock.locked()
        assert is_all_there_is(client, connection), struck
        if not struck:
            break
        places |= {*struck}
    assert {"_ask", "idle_of", "_exchange", "give_back"} <= places


def test_what_is_fetched_for_one_who_is_interrupted_meanwhile_goes_back(client, monkeypatch):
    def begin_and_interrupt(thread):
        begin(thread)
        raise KeyboardInterrupt

    begin, pool = Thread.start, client.connection_pool
    monkeypatch.setattr(Thread, "start", begin_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        pools.connection_of(pool, time.monotonic() + 60)
    wait_until(lambda: pool._available_connections and not pool._in_use_connections)


def test_an_interrupt_at_any_step_of_a_wait_for_a_connection_leaves_it_to_others(client):
    pool, own = client.connection_pool, Thread.start.__code__  # of Python, which it may harm
    for step in count(1):
        pool.disconnect()
        waiting = interrupt_at(step, pools._get_by.__code__, spared=own)
        with suppress(KeyboardInterrupt), waiting as struck:
            pool.release(pools.connection_of(pool, time.monotonic() + 60))
        wait_until(lambda: not fetching())
        assert not pool._in_use_connections, struck
        if not struck:
            break
    assert step > 5


def seats(client):
    """How many may sit at the same time, of five."""
    with ExitStack() as stack:
        return [stack.enter_context(pools.seat(client)) for _ in range(5)].count(True)


def test_an_interrupt_at_any_step_leaves_no_seat_taken(client):
    client.connection_pool.max_connections = 6
    for step in count(1):
        sitting = interrupt_at(step, pools.seat.__wrapped__.__code__)
        with suppress(KeyboardInterrupt), sitting as struck, pools.seat(client):
            pass
        assert start(seats, client).result(60) == 3, struck
        if not struck:
            break
    assert step > 2
