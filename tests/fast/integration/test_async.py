"""The async methods: cancellation, renewal, holders that are tasks, and event loops."""

import asyncio
import random
from contextlib import suppress
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from weakref import ref

import pytest
import redis
from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation

from django_redislock import LockLost, LockNotAcquired, LockNotOwnedError, locks
from django_redislock.engine import renewer
from django_redislock.signals import lock_lost
from tests.lock_tools import (
    afree,
    arenewed,
    awaiting,
    cut_connections,
    held_by_another_task,
    listening,
    until,
    warnings_of_block,
    within,
)
from tests.tools import leftovers, wait_until


async def test_each_method_has_an_async_version(manager):
    lock = manager.lock("a", timeout=10)
    assert await lock.aacquire() is True
    assert await lock.alocked() is True
    assert await lock.aowned() is True
    assert lock.fence_token > 0
    assert await lock.aextend(50) is True
    assert 55 < (await manager.aget("a")).ttl <= 60
    assert await lock.aextend(timedelta(seconds=5), replace_ttl=True) is True
    assert await lock.areacquire() is True
    assert 5 < (await manager.aget("a")).ttl <= 10
    await lock.aassert_held()
    await manager.aassert_held("a")
    assert await manager.acount() == 1
    assert [info.name async for info in manager.aactive("a*", kind="mutex")] == ["a"]
    assert await manager.lock("a").aacquire(blocking=False) is False
    await lock.arelease()
    assert lock.token is None
    for ask in (lock.arelease, lock.aassert_held, partial(manager.aassert_held, "a")):
        with pytest.raises(LockNotOwnedError):
            await ask()
    assert await lock.aacquire(token="mine")
    assert await manager.aforce_release("a", "other") == 0
    assert await manager.aforce_release("a", "mine") == 1
    with pytest.raises(LockLost):
        await lock.arelease()
    assert await manager.aget("a") is None


async def test_a_task_renews(manager, redis_server):
    async with manager.lock("a", timeout=1.5) as lock:
        [renewal] = [t for t in asyncio.all_tasks() if t.get_name() == "redislock-renewal"]
        await arenewed(manager, "a")
        renewal.cancel()  # as one that cancels all tasks of the loop
        await arenewed(manager, "a")
        cut_connections(redis_server)
        await asyncio.sleep(0.1)  # until redis-py notices that its connections are closed
        await arenewed(manager, "a")
        redis_server.script_flush()
        await arenewed(manager, "a")
        assert not lock.lost


async def test_a_loss_is_reported_in_the_loop_but_not_in_the_context_of_another_task(manager):
    request = ContextVar("request", default="none")
    heard = []

    def hear(name):
        heard.append((name, asyncio.get_running_loop(), request.get()))

    request.set("the first")
    async with manager.lock("b"):  # the renewal of the loop starts in this context
        lock = manager.lock("a", timeout=1, on_lost=lambda lock: hear(lock.name))
        assert await lock.aacquire()
        with listening(lock_lost, lambda name, **about: hear(name)):
            assert await manager.aforce_release("a") == 1
            await asyncio.to_thread(wait_until, lambda: len(heard) == 2)
        with pytest.raises(LockLost):
            await lock.arelease()
    assert heard == [("a", asyncio.get_running_loop(), "none")] * 2


@pytest.mark.parametrize(
    "wrapper", [partial(asyncio.wait_for, timeout=60), asyncio.shield, asyncio.create_task]
)
async def test_the_task_that_calls_aacquire_is_the_holder(manager, wrapper):
    lock = manager.lock("a", timeout=1.5, reentrant=True)
    assert await wrapper(lock.aacquire())
    async with lock:
        pass
    await arenewed(manager, "a")
    assert lock.fence_token
    assert not lock.lost
    await wrapper(manager.aassert_held("a"))
    assert await wrapper(lock.aextend(60))
    await wrapper(lock.arelease())
    assert await manager.aget("a") is None
    with pytest.raises(LockNotOwnedError):
        await lock.arelease()
    assert lock.acquire(), "by a sync method"
    await wrapper(lock.arelease())
    assert await wrapper(lock.aacquire())
    lock.release()


@pytest.mark.parametrize("way", ["returns", "is cancelled behind a shield"])
async def test_the_lock_of_an_ended_task_is_not_renewed(manager, way):
    lock = manager.lock("a", timeout=0.6)

    async def acquire_and_end():
        if way == "is cancelled behind a shield":
            await asyncio.shield(lock.aacquire())
        assert await lock.aacquire()

    async with manager.lock("a", timeout=60):
        task = asyncio.create_task(acquire_and_end())
        await awaiting(manager, "a", 1)
        if way == "is cancelled behind a shield":
            task.cancel()
            await asyncio.wait([task])
    await asyncio.wait([task])
    with pytest.raises(LockNotOwnedError):
        await lock.arelease()
    await afree(manager, "a")


async def test_a_sync_acquisition_that_would_block_the_event_loop_raises():
    lock = locks.lock("a", blocking_timeout=20)
    async with held_by_another_task(locks.lock("a")):
        with pytest.raises(SynchronousOnlyOperation, match=r"'a'.*aacquire"):
            lock.acquire()
        with pytest.raises(SynchronousOnlyOperation), lock:
            pass
        assert locks.queue("a") == ()
        assert lock.acquire(blocking=False) is False
        assert await asyncio.to_thread(lock.acquire, blocking_timeout=0.01) is False


def test_no_event_loop_is_kept_after_its_end():
    async def use():
        async with locks.lock("a", timeout=1.5):
            await arenewed(locks, "a")
        return ref(asyncio.get_running_loop())

    ended = []
    with warnings_of_block() as warned:
        for _ in range(2):
            ended += [asyncio.run(use()), async_to_sync(use)()]
    assert warned == []
    assert [loop() for loop in ended] == [None] * 4


async def hold_until_cancelled(after_loss=lambda: None):
    async with locks.lock("a", timeout=1, on_lost="abort") as lock:
        try:
            await asyncio.Event().wait()
        finally:
            if lock.lost:
                after_loss()


async def start_to_hold(*args):
    task = asyncio.create_task(hold_until_cancelled(*args))
    await asyncio.to_thread(wait_until, lambda: locks.get("a"))
    return task


async def test_only_a_lost_lock_aborts_its_task_with_the_loss():
    task = await start_to_hold()
    assert await locks.aforce_release("a") == 1
    with pytest.raises(LockLost):
        await task
    assert not task.cancelled()
    assert task.cancelling() == 0
    task = await start_to_hold()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await locks.aget("a") is None
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await hold_until_cancelled()
    task = await start_to_hold(lambda: asyncio.current_task().cancel())
    await locks.aforce_release("a")
    await asyncio.wait([task])
    assert task.cancelled()


# Tasks that are cancelled at any moment of a lock's life leave nothing behind


BACKGROUND = {"redislock-renewal", "redislock-inbox", "redislock-sender", "redislock-reader"}
"""Names of the tasks of an event loop that stay until they are idle."""

MAKERS = [
    *[partial(locks.lock, name) for name in "abc"],
    partial(locks.lock, "a", blocking_timeout=0.02),
    partial(locks.lock, "again", reentrant=True),
    *[partial(locks.semaphore, "permits", 3)] * 2,
    *[partial(locks.read_lock, "book")] * 2,
    partial(locks.write_lock, "book"),
    partial(locks.lock_many, ["a", "b", "c"]),
]
"""Locks of each kind, for which many tasks compete."""


def test_tasks_cancelled_at_any_moment_leave_nothing(redis_server, monkeypatch):
    async def use():
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for _ in range(40):
                group.create_task(cancel_one_after_another())
        async with asyncio.timeout(1.5):  # less than the TTL of a forgotten waiter
            await until(no_key)
            await until(no_task)

    async def no_key():
        return not leftovers(redis_server)

    async def no_task():
        names = {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}
        return names <= BACKGROUND

    # It keeps the leases that are still to be released.
    monkeypatch.setattr(renewer, "LATE_REQUEST_SECONDS", 0.5)
    locks.count()  # opens the connection of this thread
    before = len(redis_server.client_list())
    asyncio.run(use())
    wait_until(lambda: len(redis_server.client_list()) <= before)


async def cancel_one_after_another():
    for _ in range(20):
        task = asyncio.create_task(hold_for_a_moment(random.choice(MAKERS)()))
        await (asyncio.sleep(random.expovariate(1 / 0.01)) if random.random() < 0.5 else linger())
        is_accepted = task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() >= is_accepted, "the task continued"
        if not task.cancelled():
            task.result()


async def hold_for_a_moment(lock):
    # The event loop may be too busy to read the reply in time.
    with suppress(LockNotAcquired, redis.exceptions.TimeoutError):
        async with lock:
            await linger()


async def linger():
    for _ in range(random.randrange(12)):
        await asyncio.sleep(0)


async def test_a_cancelled_release_does_not_wait_long_for_redis(proxied):
    own, proxy = proxied
    inside, leaves = asyncio.Event(), asyncio.Event()

    async def hold_several():
        async with own.lock_many(["a", "b"], timeout=30):
            inside.set()
            await leaves.wait()

    task = asyncio.create_task(hold_several())
    await inside.wait()
    proxy.freeze()
    leaves.set()
    await asyncio.sleep(0.1)
    with within(4.5):
        task.cancel()
        await asyncio.wait([task], timeout=30)
    assert task.cancelled()
    proxy.thaw()
    for name in "ab":
        await afree(own, name)  # the renewal has released it
