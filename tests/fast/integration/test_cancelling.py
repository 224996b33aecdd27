"""Tasks that are cancelled at any moment of a lock's life leave nothing behind."""

import asyncio
import gc
import random
from collections import Counter
from contextlib import suppress
from functools import partial

import pytest
import redis

from django_redislock import LockNotAcquired, clock, locks
from django_redislock.engine import loop_transport, renewer, runners
from django_redislock.engine.operations import Wait
from django_redislock.engine.renewer import loop_renewer, thread_renewer
from django_redislock.engine.runners import _perform, run
from tests.lock_tools import acquisition_of, afree, until, within
from tests.tools import leftovers, wait_until

TASKS = 800

AT_ONCE = 40
"""Number of concurrent tasks on one event loop."""

TASK = "one of the crowd"

BACKGROUND = {"redislock-renewal", "redislock-inbox", "redislock-sender", "redislock-reader"}
"""Names of the tasks of an event loop that stay until they are idle."""

CONNECTIONS = 3
"""Connections of an event loop: one that all tasks share, and until they are idle, those of the
renewal and of the inbox."""

MOMENTS = ("asks", "is inside", "releases")

NAMES = ["a", "b", "c", "permits", "book", "again", *(f"own {number}" for number in range(20))]

MAKERS = [
    *[partial(locks.lock, name) for name in NAMES if name not in ("permits", "book", "again")],
    partial(locks.lock, "a", blocking_timeout=0.02),
    partial(locks.lock, "b", blocking=False),
    *[partial(locks.lock, "again", reentrant=True)] * 2,
    *[partial(locks.semaphore, "permits", 3)] * 4,
    partial(locks.semaphore, "permits", 3, weight=2),
    *[partial(locks.read_lock, "book")] * 4,
    *[partial(locks.write_lock, "book")] * 2,
    partial(locks.lock_many, ["a", "b", "c"]),
    partial(locks.lock_many, ["own 3", "c", "own 2"]),
]
"""Locks of each kind. Many tasks compete for some of them."""


def test_tasks_cancelled_at_any_moment_leave_nothing(redis_server, monkeypatch, caplog):
    async def use():
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(cancel_one_after_another())
        await nothing_is_left(redis_server, before)
        for name in NAMES:
            async with locks.lock(name, blocking=False):
                pass

    async def cancel_one_after_another():
        for _ in range(TASKS // AT_ONCE):
            await cancel_one(rng, cancelled)

    # It keeps the leases that are still to be released.
    monkeypatch.setattr(renewer, "LATE_REQUEST_SECONDS", 0.5)
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    cancelled = Counter()
    locks.count()  # opens the connection of `awaiting()`, which stays open
    before = connected(redis_server)
    try:
        asyncio.run(use())
    finally:
        print(f"seed {seed}, cancelled: {dict(cancelled)}")
    wait_until(lambda: connected(redis_server) <= before)
    assert min(cancelled[moment] for moment in MOMENTS) > TASKS / 100
    assert "Lock lost" not in caplog.text


async def cancel_one(rng, cancelled):
    """Start a task, cancel it at a random moment, and count this moment."""
    reached = ["asks"]
    task = asyncio.create_task(hold_for_a_moment(rng.choice(MAKERS)(), rng, reached), name=TASK)
    if rng.random() < 0.5:
        await asyncio.sleep(rng.expovariate(1 / 0.01))
    else:
        await linger(rng)
    is_accepted = task.cancel()
    cancelled[reached[-1]] += is_accepted
    if rng.random() < 0.1:
        await linger(rng)
        task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() >= is_accepted, "the task continued"
    if not task.cancelled():
        task.result()


async def hold_for_a_moment(lock, rng, reached):
    # The event loop may be too busy to read the reply in time.
    with suppress(LockNotAcquired, redis.exceptions.TimeoutError):
        async with lock:
            reached.append("is inside")
            if lock.reentrant:
                async with lock:
                    await linger(rng)
            await linger(rng)
            reached.append("releases")


async def linger(rng):
    for _ in range(rng.randrange(12)):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("renewer_function", "interruption"),
    [(thread_renewer, KeyboardInterrupt()), (loop_renewer, asyncio.CancelledError())],
    ids=["thread", "task"],
)
async def test_an_acquisition_that_succeeds_after_a_cancellation_is_released(
    moving_clock, renewer_function, interruption
):
    """Its request reaches Redis after the following release. This can happen if both use different
    connections."""
    lock = locks.lock("late", timeout=30)
    acquisition = acquisition_of(lock, renewer=renewer_function)
    client, flow = lock._server().client, acquisition.flow()
    under_way = next(flow)
    released = _perform(client, flow.throw(interruption))
    with pytest.raises(type(interruption)):
        flow.send(released)
    _perform(client, under_way)
    info = locks.get("late")
    assert info is None or info.token == acquisition.lease.token, "None: it is released already"
    moving_clock.forward(2)
    await moving_clock.aforward(0)
    assert await locks.aget("late") is None


@pytest.mark.parametrize("renewer_function", [thread_renewer, loop_renewer])
async def test_a_lost_request_that_arrives_after_the_release_leaves_no_holder(
    moving_clock, renewer_function
):
    lock = locks.lock("late", timeout=30)
    acquisition = acquisition_of(lock, clock.now() + 10, renewer=renewer_function)
    client, flow = lock._server().client, acquisition.flow()
    lost = flow.send(_perform(client, next(flow)))
    assert isinstance(flow.throw(redis.TimeoutError()), Wait)
    with pytest.raises(StopIteration):
        flow.send(_perform(client, flow.send(None)))
    run(client, lock._release_hold(acquisition.hold))
    assert _perform(client, lost), "it makes a holder, which the renewer may release at once"
    moving_clock.forward(2)
    await moving_clock.aforward(0)
    assert await locks.aget("late") is None


async def nothing_is_left(redis_server, before):
    async def no_key():
        return not leftovers(redis_server)

    async def no_task():
        names = {task.get_name() for task in asyncio.all_tasks() - ours}
        return names <= BACKGROUND

    async def no_more_connections():
        return len(connected(redis_server) - before) <= CONNECTIONS

    def no_memory_of_tasks():
        gc.collect()
        return not any(map(is_task_of_crowd, gc.get_objects()))

    ours = {asyncio.current_task()}
    async with asyncio.timeout(1.5):  # less than the TTL of a forgotten waiter
        await until(no_key)
        await until(no_task)
        await until(no_more_connections)
    assert [info async for info in locks.aactive()] == []
    async with asyncio.timeout(30):
        while not no_memory_of_tasks():  # noqa: ASYNC110  the garbage collector sets no event
            await asyncio.sleep(0.1)


def is_task_of_crowd(each):
    return type(each) is asyncio.Task and each.get_name() == TASK


def connected(client):
    return {each["id"] for each in client.client_list()}


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c", "d"]], ids=["one", "several"])
@pytest.mark.parametrize(("cancellations", "waits"), [(1, 1.0), (2, 20.0)])
async def test_a_cancelled_release_does_not_wait_long_for_redis(
    proxied, caplog, monkeypatch, cancellations, waits, names
):
    """It waits for a moment, and not at all if it is cancelled again."""
    for module in (loop_transport, runners):
        monkeypatch.setattr(module, "CLEANUP_TIMEOUT_SECONDS", waits)
    own, proxy = proxied
    await own.acount()
    before = asyncio.all_tasks()
    inside, leaves = asyncio.Event(), asyncio.Event()

    async def hold_several():
        async with own.lock_many(names, timeout=30):
            inside.set()
            await leaves.wait()

    task = asyncio.create_task(hold_several())
    await inside.wait()
    proxy.freeze()
    leaves.set()
    await asyncio.sleep(0.1)
    with within(4.5):
        for _ in range(cancellations):
            task.cancel()
            await asyncio.sleep(0.1)
        await asyncio.wait([task], timeout=30)
    assert task.cancelled()
    await asyncio.sleep(0)
    assert {each.get_name() for each in asyncio.all_tasks() - before} <= BACKGROUND
    if cancellations == 2:
        proxy.cut()  # requests that still wait for a reply fail
    gc.collect()
    proxy.thaw()
    for name in names:
        await afree(own, name)  # the renewal has released it
    gc.collect()
    assert "never retrieved" not in caplog.text
