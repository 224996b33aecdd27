"""Tasks that are cancelled at any moment of a lock's life leave nothing behind."""

import asyncio
import gc
import random
import time
from collections import Counter
from contextlib import contextmanager
from functools import partial

import pytest
import redis

from django_redislock import clock, locks
from django_redislock.engine import loop_transport, renewer, runners
from django_redislock.engine.operations import Wait
from django_redislock.engine.renewer import loop_renewer, thread_renewer
from django_redislock.engine.runners import _perform, run
from django_redislock.lua import ACQUIRE, RELEASE
from tests.faults.proxy import Proxy, runs
from tests.lock_tools import acquisition_of, afree, until
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

WORKS_WITHIN = 60.0
"""Time limit for all tasks on a busy machine."""

FORGETS_WITHIN = 30.0
"""Time limit until the process has freed all ended tasks."""

MOMENTS = ("asks", "is inside", "releases")


def test_tasks_cancelled_at_any_moment_leave_nothing(redis_server, monkeypatch):
    async def use():
        await crowd.work(TASKS)
        await nothing_is_left(redis_server, before)
        for name in crowd.names:
            newcomer = locks.lock(name, blocking=False)
            assert await newcomer.aacquire()
            await newcomer.arelease()

    monkeypatch.setattr(
        renewer, "LATE_REQUEST_SECONDS", 0.5
    )  # it keeps the leases that are still to be released
    seed = random.randrange(10**6)
    crowd = Crowd(random.Random(seed))
    locks.count()  # opens the connection of `awaiting()`, which stays open
    before = connected(redis_server)
    try:
        asyncio.run(use())
    finally:
        print(f"seed {seed}, cancelled: {dict(crowd.cancelled)}")
    wait_until(lambda: connected(redis_server) <= before)
    assert min(crowd.cancelled[moment] for moment in MOMENTS) > TASKS / 50


def test_an_acquisition_that_succeeds_after_a_cancellation_is_released(moving_clock):
    acquired_late(thread_renewer, KeyboardInterrupt())
    moving_clock.forward(2)
    assert locks.get("late") is None

    async def use():
        acquired_late(loop_renewer, asyncio.CancelledError())
        await moving_clock.aforward(2)
        assert await locks.aget("late") is None

    asyncio.run(use())


def acquired_late(renewer_function, interruption):
    """Interrupt an acquisition whose request reaches Redis after the following release. This can
    happen if both use different connections."""
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


def test_a_lost_request_that_arrives_after_the_release_leaves_no_holder(moving_clock):
    acquired_again_and_released(thread_renewer)
    moving_clock.forward(2)
    assert locks.get("late") is None

    async def use():
        acquired_again_and_released(loop_renewer)
        await moving_clock.aforward(2)
        assert await locks.aget("late") is None

    asyncio.run(use())


def acquired_again_and_released(renewer_function):
    """Lose a request, acquire the lock with another one, release it, and let the first one reach
    Redis."""
    lock = locks.lock("late", timeout=30)
    acquisition = acquisition_of(lock, clock.now() + 10, renewer=renewer_function)
    client, flow = lock._server().client, acquisition.flow()
    lost = flow.send(_perform(client, next(flow)))
    assert isinstance(flow.throw(redis.TimeoutError()), Wait)
    with pytest.raises(StopIteration):
        flow.send(_perform(client, flow.send(None)))
    run(client, lock._release_hold(acquisition.hold))
    assert _perform(client, lost), "it makes a holder, which the renewer may release at once"


@pytest.mark.parametrize("events", [0, 100])
def test_a_cancelled_release_reports_no_loss(alias_on, own_server, settings, caplog, events):
    settings.REDISLOCK_HISTORY = events
    with Proxy("127.0.0.1", own_server.port) as proxy:
        own = alias_on(proxy.through(own_server.url))

        with own.lock("a"):  # the server knows the scripts
            pass

        async def use():
            delayed = proxy.delay_reply(runs(RELEASE), 0.3)
            task = asyncio.create_task(hold(own.lock("a", timeout=30)))
            await until(partial(is_true, delayed.has_begun))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await own.aget("a") is None

        asyncio.run(use())
    assert "Lock lost" not in caplog.text


async def is_true(predicate):
    return predicate()


async def hold(lock):
    async with lock:
        pass


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
    async with asyncio.timeout(FORGETS_WITHIN):
        while not no_memory_of_tasks():  # noqa: ASYNC110  the garbage collector sets no event
            await asyncio.sleep(0.1)


def is_task_of_crowd(each):
    return type(each) is asyncio.Task and each.get_name() == TASK


def connected(client):
    return {each["id"] for each in client.client_list()}


class Crowd:
    """Locks of each kind. Many tasks compete for some of them."""

    def __init__(self, rng):
        self.rng = rng
        self.inside = Counter()
        self.cancelled = Counter()
        self.names = ["a", "b", "c", "permits", "book", "again", *(f"own {n}" for n in range(20))]
        shared = [locks.lock(name) for name in "abc"]
        self.makers = [
            *(partial(lambda lock: lock, lock) for lock in shared),
            *(partial(locks.lock, f"own {number}") for number in range(20)),
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

    async def work(self, tasks):
        left = iter(range(tasks))

        async def one_after_another():
            for _ in left:
                await self.cancel_one()

        async with asyncio.timeout(WORKS_WITHIN), asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(one_after_another())

    async def cancel_one(self):
        """Start a task, and cancel it shortly after a random moment of `MOMENTS`."""
        doomed, doomed_at = asyncio.Event(), self.rng.choices(MOMENTS, (4, 1, 2))[0]
        now = ""

        def reach(moment):
            nonlocal now
            now = moment
            if moment == doomed_at:
                doomed.set()

        task = asyncio.create_task(self.hold(self.rng.choice(self.makers)(), reach), name=TASK)
        task.add_done_callback(lambda task: doomed.set())  # the task may end before that moment
        await doomed.wait()
        if self.rng.random() < 0.5:
            await asyncio.sleep(self.rng.expovariate(1 / 0.003))
        else:
            await self.linger(12)
        cancelled = task.cancel()
        self.cancelled[now] += cancelled
        if self.rng.random() < 0.1:
            await self.linger(12)
            task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() >= cancelled, "the task continued"
        if not task.cancelled():
            task.result()

    async def hold(self, lock, reach):
        reach("asks")
        if lock.blocking and lock.blocking_timeout is None and self.rng.random() < 0.5:
            async with lock:
                await self.stay(lock, reach)
        elif await self.acquire(lock):
            try:
                await self.stay(lock, reach)
            finally:
                await lock.arelease()

    async def acquire(self, lock):
        try:
            return await lock.aacquire()
        except redis.exceptions.TimeoutError:  # the event loop was too busy to read the reply
            assert lock.blocking_timeout
            return False

    async def stay(self, lock, reach):
        reach("is inside")
        with self.counted_in(lock):
            if lock.reentrant:
                async with lock:
                    await self.linger(12)
            else:
                await self.linger(12)
        reach("releases")

    async def linger(self, most):
        for _ in range(self.rng.randrange(most)):
            await asyncio.sleep(0)

    @contextmanager
    def counted_in(self, lock):
        names = getattr(lock, "names", [lock.name])
        for name in names:
            self.inside[name] += lock.weight
            assert self.inside[name] <= lock.capacity
        try:
            yield
        finally:
            for name in names:
                self.inside[name] -= lock.weight


async def leave_while_frozen(lock, proxy, cancellations):
    """Cancel a task that exits a block while Redis does not respond. Return the seconds from the
    first cancellation to its end."""

    async def hold(inside, leaves):
        async with lock:
            inside.set()
            await leaves.wait()

    inside, leaves = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(hold(inside, leaves))
    await inside.wait()
    proxy.freeze()
    leaves.set()
    await asyncio.sleep(0.1)
    began = time.monotonic()
    for _ in range(cancellations):
        task.cancel()
        await asyncio.sleep(0.1)
    await asyncio.wait([task], timeout=30)
    assert task.cancelled()
    return time.monotonic() - began


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c", "d"]], ids=["one", "several"])
@pytest.mark.parametrize(("cancellations", "waits"), [(1, 1.0), (2, 20.0)])
def test_a_cancelled_release_does_not_wait_long_for_redis(
    proxied, caplog, monkeypatch, cancellations, waits, names
):
    """It waits for a moment, and not at all if it is cancelled again."""
    for module in (loop_transport, runners):
        monkeypatch.setattr(module, "CLEANUP_TIMEOUT_SECONDS", waits)
    own, proxy = proxied
    lock = own.lock_many(names, timeout=30)

    async def use():
        await own.acount()
        before = asyncio.all_tasks()
        took = await leave_while_frozen(lock, proxy, cancellations)
        await asyncio.sleep(0)
        names = {task.get_name() for task in asyncio.all_tasks() - before}
        assert names <= BACKGROUND
        if cancellations == 2:
            proxy.cut()  # requests that still wait for a reply fail
        gc.collect()
        proxy.thaw()
        for name in names:
            await afree(own, name)  # the renewal has released it
        return took

    assert asyncio.run(use()) < 4.5
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_an_acquisition_that_is_cancelled_twice_is_released(proxied):
    own, proxy = proxied

    async def use():
        await own.acount()
        asked = proxy.delay_reply(runs(ACQUIRE), 0.3)
        task = asyncio.create_task(own.lock("a", timeout=30).aacquire())
        while not asked.has_begun():  # noqa: ASYNC110  a proxy sets no event
            await asyncio.sleep(0.01)
        proxy.freeze()
        task.cancel()
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        proxy.thaw()
        await afree(own, "a")

    asyncio.run(use())
