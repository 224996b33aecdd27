"""A reply that has arrived counts, even if the process was too busy to read it in time."""

import asyncio
import time

import pytest
from redis.exceptions import TimeoutError

from django_redislock.lua import ACQUIRE, RELEASE
from tests.faults.proxy import Proxy, runs
from tests.lock_tools import hanging
from tests.tools import wait_until

LIMIT = 0.5
"""Time limit of `acquire(blocking_timeout=0.1)` for a reply."""


async def while_busy(proxy, script, asking):
    """Let the reply to the script arrive while the event loop is busy for too long."""
    delay = proxy.delay_reply(runs(script), 0.2)
    task = asyncio.create_task(asking)
    await asyncio.to_thread(wait_until, delay.has_begun)
    wait_until(delay.is_done)  # it blocks the event loop
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
        ({"socket_timeout": LIMIT}, None, True, RELEASE),
        ({"socket_timeout": LIMIT}, None, False, ACQUIRE),
    ],
)
def test_a_reply_that_arrived_while_the_event_loop_was_busy_counts(
    alias_on, own_server, options, wait, connected, script
):
    async def use(manager, proxy):
        if connected:
            await manager.acount()
        lock = manager.lock("a", timeout=30, blocking_timeout=wait)
        assert await while_busy(proxy, script, acquire_and_release(lock))

    with Proxy("127.0.0.1", own_server.port) as proxy:
        manager = alias_on(proxy.through(own_server.url), **options)
        with manager.lock("a"):  # the server knows the scripts
            manager.count()
        asyncio.run(use(manager, proxy))


@pytest.mark.hurried
def test_a_busy_event_loop_does_not_hide_that_redis_does_not_respond(own_locks, own_server):
    async def use():
        await own_locks.acount()
        with hanging(own_server):
            task = asyncio.create_task(own_locks.lock("a").aacquire(blocking_timeout=0.1))
            await asyncio.sleep(0.05)
            time.sleep(2 * LIMIT)  # noqa: ASYNC251
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(task, 10)

    asyncio.run(use())
