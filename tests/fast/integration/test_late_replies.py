"""A reply that has arrived counts, even if the process was too busy to read it in time."""

import asyncio
import time

import pytest
from redis.exceptions import TimeoutError

from django_redislock.lua import ACQUIRE, RELEASE
from tests.faults.proxy import Proxy, runs
from tests.lock_tools import hanging, until

LIMIT = 0.5
"""Time limit of `acquire(blocking_timeout=0.1)` for a reply."""


@pytest.fixture
def proxy(own_server):
    with Proxy("127.0.0.1", own_server.port) as proxy:
        yield proxy


async def while_busy(proxy, script, asking):
    """Let the reply to the script arrive while the event loop is busy for too long."""

    async def has_begun():
        return delay.has_begun()

    delay = proxy.delay_reply(runs(script), 0.2)
    task = asyncio.create_task(asking)
    await until(has_begun)
    while not delay.is_done():
        time.sleep(0.05)  # noqa: ASYNC251  it blocks the event loop
    time.sleep(2 * LIMIT)  # noqa: ASYNC251
    return await task


async def acquire_and_release(lock):
    acquired = await lock.aacquire()
    await lock.arelease()
    return acquired


@pytest.mark.hurried
@pytest.mark.parametrize(
    ("options", "wait", "connected", "script"),
    [
        ({}, 0.1, True, ACQUIRE),
        ({}, 0.1, False, ACQUIRE),
        ({"socket_timeout": LIMIT}, None, True, RELEASE),
        ({"socket_timeout": LIMIT}, None, False, ACQUIRE),
    ],
)
def test_a_reply_that_arrived_while_the_event_loop_was_busy_counts(
    alias_on, own_server, proxy, options, wait, connected, script
):
    own = alias_on(proxy.through(own_server.url), **options)

    async def use():
        if connected:
            await own.acount()
        lock = own.lock("a", timeout=30, blocking_timeout=wait)
        assert await while_busy(proxy, script, acquire_and_release(lock))

    own.count()
    with own.lock("a"):  # the server knows the scripts
        pass
    asyncio.run(use())


@pytest.mark.parametrize("limits", [{"blocking_timeout": 0.1}, {}], ids=["limit", "socket"])
@pytest.mark.hurried
def test_a_busy_event_loop_does_not_hide_that_redis_does_not_respond(alias_on, own_server, limits):
    own = alias_on(own_server.url, socket_timeout=LIMIT)

    async def use():
        await own.acount()
        with hanging(own_server):
            task = asyncio.create_task(own.lock("a").aacquire(**limits))
            await asyncio.sleep(0.05)
            time.sleep(2 * LIMIT)  # noqa: ASYNC251
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(task, 10)

    asyncio.run(use())
