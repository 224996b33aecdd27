"""The holder keeps its lock, and can release it, if others use all connections of its pool."""

import asyncio
from contextlib import asynccontextmanager, contextmanager

import pytest
import redis

from django_redislock import AsyncLock, Lock
from django_redislock.engine import renewer
from tests.lock_tools import start, until
from tests.tools import wait_until

LEASE = 1.5
"""In seconds. Without renewal, a holder loses its lock within this time."""

CONNECTIONS = 4


def connected(own_redis):
    """Return the number of connections to the server, without the observer's own."""
    return len(own_redis.client_list()) - 1


def blocked(own_redis):
    return own_redis.info("clients")["blocked_clients"]


@contextmanager
def used_up(client, own_redis):
    """Use all connections of the pool for blocking commands."""
    users = [start(client.blpop, ["busy"], 60) for _ in range(CONNECTIONS)]
    wait_until(lambda: blocked(own_redis) == CONNECTIONS)
    yield
    own_redis.rpush("busy", *range(CONNECTIONS))
    for user in users:
        user.result(60)


@asynccontextmanager
async def used_up_on_loop(client, own_redis):
    async def all_blocked():
        return await asyncio.to_thread(blocked, own_redis) == CONNECTIONS

    users = [asyncio.create_task(client.blpop(["busy"], 60)) for _ in range(CONNECTIONS)]
    await until(all_blocked)
    yield
    own_redis.rpush("busy", *range(CONNECTIONS))
    await asyncio.gather(*users)


@pytest.fixture(params=[{}, {"timeout": 0.5}], ids=["ConnectionPool", "BlockingConnectionPool"])
def options(request):
    """Return the class of a pool and its options."""
    pool_class = "BlockingConnectionPool" if request.param else "ConnectionPool"
    return pool_class, {"max_connections": CONNECTIONS, "socket_timeout": None, **request.param}


def test_a_holder_renews_and_releases_with_an_exhausted_pool(
    own_server, own_redis, options, moving_clock
):
    pool_class, options = options
    pool = getattr(redis, pool_class).from_url(own_server.url, **options)
    with redis.Redis(connection_pool=pool) as client:
        lock = Lock(client, "a", timeout=30)
        assert lock.acquire()
        with used_up(client, own_redis):
            for _ in range(3):
                moving_clock.forward(15)
            assert not lock.lost
            lock.release()
        assert not lock.locked()


def test_a_task_renews_and_releases_with_an_exhausted_pool(
    own_server, own_redis, options, moving_clock
):
    pool_class, options = options
    pool = getattr(redis.asyncio, pool_class).from_url(own_server.url, **options)

    async def use():
        async with redis.asyncio.Redis(connection_pool=pool) as client:
            lock = AsyncLock(client, "a", timeout=30)
            assert await lock.acquire()
            async with used_up_on_loop(client, own_redis):
                for _ in range(3):
                    await moving_clock.aforward(15)
                assert not lock.lost
                await lock.release()
            assert not await lock.locked()
        await pool.aclose()

    asyncio.run(use())


async def test_a_task_waits_for_a_connection(own_server, own_redis):
    options = {"max_connections": CONNECTIONS}
    async with (
        redis.asyncio.Redis.from_url(own_server.url, **options) as client,
        used_up_on_loop(client, own_redis),
    ):
        acquires = asyncio.create_task(AsyncLock(client, "a", timeout=30).acquire())
        own_redis.rpush("busy", 1)
        assert await acquires


def test_an_idle_renewer_closes_its_connection_and_the_next_lease_starts_another(
    own_locks, own_redis, monkeypatch
):
    monkeypatch.setattr(renewer, "RENEWER_IDLE_SECONDS", 0.05)
    for _ in range(2):
        with own_locks.lock("a", timeout=LEASE):
            assert connected(own_redis) == 1
            wait_until(lambda: connected(own_redis) == 2)
        wait_until(lambda: connected(own_redis) == 1)


def test_an_idle_renewal_task_closes_its_connection_and_the_next_lease_starts_another(
    own_locks, own_redis, monkeypatch
):
    monkeypatch.setattr(renewer, "RENEWER_IDLE_SECONDS", 0.05)

    async def so_many(count):
        await asyncio.to_thread(wait_until, lambda: connected(own_redis) == count)

    async def use():
        for _ in range(2):
            async with own_locks.lock("a", timeout=LEASE):
                assert connected(own_redis) == 1
                await so_many(2)
            await so_many(1)

    asyncio.run(use())
    wait_until(lambda: connected(own_redis) == 0)
