"""A command whose reply is lost may be sent twice, with the same result. A force release and the
takeover of a queue lock are never sent twice."""

import asyncio

import pytest
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_redislock import Lock, clock
from django_redislock.engine import protocol
from django_redislock.engine.runners import arun, run
from django_redislock.keys import Keys
from django_redislock.lock_types import QueueLock
from django_redislock.lua import ACQUIRE, FORCE, RELEASE, RENEW
from tests.faults.proxy import Proxy, runs
from tests.lock_tools import lease_of, start
from tests.servers import Node
from tests.tools import wait_until


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
def client(request, proxy):
    options = {"retry": Retry(NoBackoff(), 1 if request.param == "retries" else 0)}
    with redis.Redis.from_url(proxy.url, **options) as client:
        Lock(client, "a").locked()  # a new connection is not replaced
        yield client
        client.connection_pool.disconnect()


def test_an_acquisition_a_renewal_and_a_release(proxy, client):
    lock = Lock(client, "a", timeout=30)
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
def granted(client):
    """Return the keys of a lock, and the future of its waiter."""
    first, second = (Lock(client, "a", timeout=30) for _ in range(2))
    keys = Keys("redislock").of("a")
    assert first.acquire()
    waiter = start(second.acquire)
    wait_until(lambda: client.exists(keys.queue))
    yield keys
    assert waiter.result(60)
    assert first.locked()
    assert len(run(client, protocol.force_release(keys, None))) == 1


def test_a_forced_release_is_not_repeated(proxy, client, granted):
    """A repetition would release the waiter that was granted the lock by the first one."""
    lost = proxy.drop_reply(runs(FORCE))
    with pytest.raises(redis.ConnectionError):
        run(client, protocol.force_release(granted, None))
    assert lost.is_done()


def test_the_takeover_of_a_hold_that_is_gone_is_not_repeated(proxy, client):
    """The reply to a repetition would be that the hold was taken over."""
    queue_lock = QueueLock(Lock(client, "a"), "a-token", ("shop.sync", "an-id"))
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
