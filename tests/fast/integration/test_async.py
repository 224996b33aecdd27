"""The async methods: cancellation, renewal, holders that are tasks, and event loops."""

import asyncio
import gc
import random
from collections import Counter
from contextlib import suppress
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from weakref import ref

import pytest
import redis
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from redis.asyncio.connection import Connection

from django_redislock import LockLost, LockNotAcquired, LockNotOwnedError, clock, locks
from django_redislock.engine import loop_transport, renewer, runners
from django_redislock.engine.operations import Wait
from django_redislock.engine.renewer import loop_renewer, thread_renewer
from django_redislock.engine.runners import _perform, run
from django_redislock.lua import RELEASE
from django_redislock.signals import lock_lost
from tests.faults.proxy import runs
from tests.lock_tools import (
    acquisition_of,
    afree,
    arenewed,
    awaiting,
    cut_connections,
    free,
    held_by_another_task,
    hold_of,
    lease_of,
    listening,
    start,
    until,
    waiting,
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


async def test_a_loss_is_visible_in_the_threads_of_a_task_although_another_task_uses_the_object():
    lock = locks.semaphore("a", 2, timeout=300)
    part = sync_to_async(lambda: (lock.lost, lock.fence_token))
    await lock.aacquire()
    assert await part() == (False, lock.fence_token)
    async with held_by_another_task(lock):
        assert await part() == (False, None)  # the thread may belong to either task
        lease_of(lock).mark_lost()
        assert await part() == (True, None)
    with pytest.raises(LockLost):
        await lock.arelease()


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


@pytest.mark.parametrize("way", ["returns", "is cancelled", "is cancelled behind a shield"])
async def test_the_lock_of_an_ended_task_is_not_renewed(manager, way):
    lock = manager.lock("a", timeout=0.6)

    async def acquire_and_end():
        if way == "is cancelled behind a shield":
            await asyncio.shield(lock.aacquire())
        assert await lock.aacquire()
        if way == "is cancelled":
            asyncio.current_task().cancel()
            await asyncio.sleep(0)

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


@pytest.mark.parametrize(
    ("waits", "holds", "seconds"),
    [
        (partial(locks.lock, "a"), locks.lock, 60),
        (partial(locks.semaphore, "a", 1), partial(locks.semaphore, limit=1), None),
        (partial(locks.read_lock, "a"), locks.write_lock, None),
        (partial(locks.lock_many, ["0", "a"]), locks.lock, None),
    ],
    ids=["lock", "semaphore", "read_lock", "lock_many"],
)
async def test_a_sync_acquisition_that_would_block_the_event_loop_raises(waits, holds, seconds):
    lock = waits(timeout=60, blocking_timeout=seconds)
    async with held_by_another_task(holds("a", timeout=60)):
        with pytest.raises(SynchronousOnlyOperation, match="aacquire") as raised:
            lock.acquire()
        with pytest.raises(SynchronousOnlyOperation), lock:
            pass
        assert repr(lock.name) in str(raised.value)
        assert locks.queue("a") == ()
        assert locks.count() == 1
        assert lock.acquire(blocking=False) is False
        assert await asyncio.to_thread(lock.acquire, blocking_timeout=0.01) is False


def test_an_event_loop_may_be_blocked_if_django_allows_it(monkeypatch, hold):
    async def use():
        start(lambda: waiting(locks, "a", 1) or locks.force_release("a"))
        with locks.lock("a", blocking_timeout=60):
            return True

    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    hold("a")
    assert asyncio.run(use())


async def test_only_a_loss_that_the_renewal_of_the_loop_finds_cancels_a_task(moving_clock):
    with pytest.raises(LockLost):
        async with locks.lock("a", on_lost="abort"):
            await locks.aforce_release("a")
    lock = locks.lock("a", timeout=30, on_lost="abort")
    await lock.aacquire()
    await locks.aforce_release("a")
    with pytest.raises(LockLost):
        await lock.aextend(1)
    assert lock.acquire(), "by a sync method"
    assert await locks.aforce_release("a") == 1
    await asyncio.to_thread(moving_clock.forward, 15)
    assert lock.lost
    await asyncio.sleep(0.05)  # gives an unwanted cancellation time to arrive
    assert asyncio.current_task().cancelling() == 0
    with pytest.raises(LockLost):
        await lock.arelease()


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


def test_a_block_that_ended_before_it_could_be_aborted_raises_too():
    async def use():
        lock = locks.lock("a", timeout=1, on_lost="abort")
        async with lock:
            await locks.aforce_release("a")
            while not lock.lost:  # noqa: ASYNC110  the cancellation may end it
                await asyncio.sleep(0)

    with pytest.raises(LockLost):
        asyncio.run(use())


async def test_a_loss_during_the_release_is_raised_and_not_the_cancellation():
    async with asyncio.timeout(10):
        with pytest.raises(LockLost):
            async with locks.lock("a", timeout=30, on_lost="abort") as lock:
                asyncio.get_running_loop().call_soon(hold_of(lock).abort)
    assert asyncio.current_task().cancelling() == 0
    await afree(locks, "a")


async def test_only_its_own_loop_cancels_a_task():
    async def abort():
        hold_of_task.abort()

    async with locks.lock("a", timeout=30, on_lost="abort") as lock:
        hold_of_task = hold_of(lock)
        await asyncio.to_thread(asyncio.run, abort())
        await asyncio.sleep(0)
        assert asyncio.current_task().cancelling() == 0


def test_a_loop_that_was_not_shut_down_is_forgotten_by_the_next():
    server = locks.lock("a")._server()

    async def use():
        async with locks.lock("a", timeout=1.5):
            pass

    loops = [asyncio.new_event_loop() for _ in range(3)]
    for loop in loops:
        loop.run_until_complete(use())
        for task in asyncio.all_tasks(loop):
            task.cancel()
            loop.run_until_complete(asyncio.wait([task]))
        client = server._async_clients[loop][0]
        loop.run_until_complete(client.connection_pool.disconnect())
        loop.close()
    asyncio.run(use())
    known = {*server._async_clients, *renewer._loop_renewers}
    assert known.isdisjoint(loops)


# Tasks that are cancelled at any moment of a lock's life leave nothing behind


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
async def test_an_acquisition_that_reaches_redis_after_its_release_is_released(
    moving_clock, renewer_function, interruption
):
    """This can happen if both use different connections."""
    lock = locks.lock("late", timeout=300)
    acquisition = acquisition_of(lock, renewer=renewer_function)
    client, flow = lock._server().client, acquisition.flow()
    late = next(flow)
    released = _perform(client, flow.throw(interruption))
    with pytest.raises(type(interruption)):
        flow.send(released)
    _perform(client, late)
    info = locks.get("late")
    assert info is None or info.token == acquisition.lease.token, "None: it is released already"
    moving_clock.forward(2)
    await moving_clock.aforward(0)
    await afree(locks, "late")  # before its lease expires

    acquisition = acquisition_of(lock, clock.now() + 10, renewer=renewer_function)
    flow = acquisition.flow()
    late = flow.send(_perform(client, next(flow)))
    assert isinstance(flow.throw(redis.TimeoutError()), Wait)
    with pytest.raises(StopIteration):
        flow.send(_perform(client, flow.send(None)))
    run(client, lock._release_hold(acquisition.hold))
    assert _perform(client, late), "it makes a holder, which the renewer may release at once"
    moving_clock.forward(2)
    await moving_clock.aforward(0)
    await afree(locks, "late")  # before its lease expires


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


@pytest.mark.parametrize("left", [0, 3])
async def test_a_task_that_is_cancelled_releases_the_others_but_asks_no_question(proxied, left):
    own, proxy = proxied
    many = own.lock_many(["a", "b", "c"], timeout=30)
    await many.aacquire()
    await many.arelease()  # so that the server knows the scripts
    await many.aacquire()
    delay = proxy.delay_reply(runs(RELEASE), 0.1)
    release = own.arelease_for("a", "another's") if left else many.arelease()
    task = asyncio.create_task(release)
    await asyncio.to_thread(wait_until, delay.has_begun)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert await own.acount() == left
    if left:
        await many.arelease()


def test_a_loop_ends_although_redis_py_loses_a_cancellation(monkeypatch):
    """As `asyncio.wait_for()` before Python 3.12, if a result comes at that moment."""
    connect = Connection.connect

    async def connect_at_that_moment(self):
        await connect(self)
        connected.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    async def leave_a_task():
        nonlocal connected
        connected = asyncio.Event()
        task = asyncio.create_task(locks.lock("a").aacquire())
        await connected.wait()
        return task

    connected = asyncio.Event()
    monkeypatch.setattr(Connection, "connect", connect_at_that_moment)
    assert start(asyncio.run, leave_a_task()).result(20).cancelled()
    free(locks, "a")
