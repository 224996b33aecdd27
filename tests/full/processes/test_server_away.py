"""Redis is stopped, hangs, restarts, or forgets the scripts."""

import asyncio
import os
import signal
import threading
import time
from contextlib import contextmanager

import pytest
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError, ResponseError, TimeoutError
from redis.retry import Retry

from django_redislock import LockLost, clock, locks
from django_redislock.engine import renewal
from django_redislock.engine.renewal import thread_book
from django_redislock.testing import EmbeddedServer
from tests.lock_tools import (
    afree,
    awaiting,
    cut_connections,
    fetching,
    free,
    hanging,
    start,
    waiting,
)
from tests.tools import Child, wait_until


@contextmanager
def within(seconds):
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


@pytest.mark.parametrize("wait", [None, 0, 5], ids=["for ever", "not", "5 s"])
def test_a_stopped_server_is_an_error_at_once(alias_on, either_backend, own_server, wait):
    own = alias_on(own_server.url, backend=either_backend)
    with own.lock("a"):
        pass
    own_server.stop()
    with within(1), pytest.raises(ConnectionError):
        own.lock("a", blocking_timeout=wait).acquire()


@pytest.mark.slow
def test_a_stopped_server_is_an_error_at_once_in_async_too(alias_on, either_backend, own_server):
    own = alias_on(own_server.url, backend=either_backend)

    async def use():
        async with own.lock("a"):
            pass
        own_server.stop()
        with within(1), pytest.raises(ConnectionError):
            await own.lock("a", blocking_timeout=5).aacquire()

    asyncio.run(use())


@pytest.mark.parametrize("what", ["get", "count", "active", "force_release", "locked"])
def test_every_other_question_is_an_error_at_once(alias_on, what):
    own = alias_on("redis://127.0.0.1:1/0")
    asked = {
        "get": lambda: own.get("a"),
        "count": own.count,
        "active": lambda: list(own.active()),
        "force_release": lambda: own.force_release("a"),
        "locked": own.lock("a").locked,
    }
    with within(1), pytest.raises(ConnectionError):
        asked[what]()


def test_a_server_that_went_away_under_a_holder_loses_the_lock_at_its_leases_end(
    own_locks, own_server
):
    lost = []
    lock = own_locks.lock("a", timeout=1.5, on_lost=lambda lock: lost.append(time.monotonic()))
    assert lock.acquire()
    own_server.stop()
    stopped = time.monotonic()
    wait_until(lambda: lost)
    assert 0.5 < lost[0] - stopped < 2.5
    assert lock.lost
    with pytest.raises((LockLost, ConnectionError)):
        lock.release()
    assert len(lost) == 1


def test_a_holder_is_not_lost_before_its_lease_ends(own_locks, own_server):
    with own_locks.lock("a", timeout=60) as lock:
        with hanging(own_server):
            assert not lock.lost
            lock.assert_held()
        assert lock.owned()


@pytest.fixture
def persistent(own_server, own_redis):
    """`own_server` forgets nothing when it is started again."""
    own_redis.config_set("appendonly", "yes")
    own_redis.config_set("appendfsync", "always")
    wait_until(lambda: own_redis.info("persistence")["aof_rewrite_in_progress"] == 0)
    own_server.config |= {"appendonly": "yes"}


def test_a_release_that_could_not_be_sent_is_made_good(alias_on, own_server, persistent):
    # Nobody answers at that port until the server is there again.
    own = alias_on(own_server.url)
    lock = own.lock("a", timeout=60)
    assert lock.acquire()
    own_server.stop()
    with pytest.raises(ConnectionError):
        lock.release()
    own_server.start()
    free(own, "a", timeout=10)


def test_a_release_that_the_server_refused_is_made_good_for_as_long(
    own_locks, own_redis, monkeypatch
):
    monkeypatch.setattr(renewal, "LATE", 0)  # which is for a server that says that it is not held
    lock = own_locks.lock("a", timeout=60)
    assert lock.acquire()
    own_redis.config_set("min-replicas-to-write", 1)
    with pytest.raises(ResponseError, match="NOREPLICAS"):
        lock.release()
    returns = thread_book(lock._server(), "a")._returns
    [lease] = returns.values()
    first = lease.due
    wait_until(lambda: lease.due > first)
    own_redis.config_set("min-replicas-to-write", 0)
    free(own_locks, "a", timeout=10)


@pytest.mark.slow
def test_a_release_that_could_not_be_sent_does_not_cut_short_the_least_time(
    alias_on, own_server, persistent
):
    own = alias_on(own_server.url)
    lock = own.lock("a", at_least_for=60)
    assert lock.acquire()
    token = lock.token
    own_server.stop()
    with pytest.raises(ConnectionError):
        lock.release()
    own_server.start()
    assert not thread_book(lock._server(), "a")._returns
    assert own.get("a").token == token
    assert own.force_release("a") == 1


ASKED_FIRST = {"health_check_interval": 0.001, "socket_timeout": None}
"""Options with which redis-py asks a server that hangs whether it is there, and waits for ever."""


@pytest.mark.hurried
@pytest.mark.parametrize("options", [{}, ASKED_FIRST], ids=["", "asked first"])
def test_a_hanging_server_is_an_error_when_the_wait_is_over(alias_on, own_server, options):
    own_locks = alias_on(own_server.url, **options)
    with own_locks.lock("warm"):
        pass
    with hanging(own_server), within(2), pytest.raises(TimeoutError):
        own_locks.lock("a", timeout=60).acquire(blocking_timeout=1)
    # The request may be read yet; what it was granted is given back.
    free(own_locks, "a")
    with own_locks.lock("a", blocking_timeout=5):
        pass
    free(own_locks, "a")


def test_a_token_that_is_used_again_is_not_given_back(alias_on, own_server):
    own = alias_on(own_server.url)
    lock = own.lock("a", timeout=20)
    book = thread_book(lock._server(), "a")
    own_server.stop()
    with pytest.raises(ConnectionError):
        lock.acquire(token="mine")
    assert book._returns
    own_server.start()
    assert lock.acquire(token="mine")
    assert not book._returns
    assert lock.owned()
    lock.release()


@pytest.mark.hurried
def test_a_server_that_hangs_while_one_waits_is_an_error_when_the_wait_is_over(
    own_locks, own_server
):
    with own_locks.lock("a"):
        waiter = start(own_locks.lock("a", timeout=60, blocking_timeout=1.5).acquire)
        waiting(own_locks, "a", 1)
        with hanging(own_server), within(3), pytest.raises(TimeoutError):
            waiter.result(60)
        waiting(own_locks, "a", 0)
    free(own_locks, "a")


@pytest.mark.hurried
def test_a_server_that_hangs_while_a_task_waits_is_an_error_when_the_wait_is_over(
    own_locks, own_server
):
    async def use():
        holder = own_locks.lock("a")
        await holder.aacquire()
        waiter = asyncio.create_task(
            own_locks.lock("a", timeout=60, blocking_timeout=1.5).aacquire()
        )
        await awaiting(own_locks, "a", 1)
        with hanging(own_server), within(3), pytest.raises(TimeoutError):
            await waiter
        await holder.arelease()

    asyncio.run(use())
    free(own_locks, "a")


@pytest.mark.hurried
def test_a_hanging_server_is_an_error_in_async_too(own_locks, own_server):
    async def use():
        async with own_locks.lock("warm"):
            pass
        with hanging(own_server), within(2), pytest.raises(TimeoutError):
            await own_locks.lock("a", timeout=60).aacquire(blocking_timeout=1)
        await afree(own_locks, "a")

    asyncio.run(use())
    free(own_locks, "a")


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_what_is_granted_when_its_lease_is_over_already_is_an_error(own_locks, own_server, colour):
    lock = own_locks.lock("a", timeout=0.5, blocking=False)

    async def use():
        await own_locks.acount()  # connected
        with hanging(own_server):
            acquired = lock.aacquire() if colour == "async" else asyncio.to_thread(lock.acquire)
            asked = asyncio.create_task(acquired)
            await asyncio.sleep(0.8)
        with pytest.raises(TimeoutError):
            await asked
        await afree(own_locks, "a")

    own_locks.count()
    asyncio.run(use())


def test_a_hanging_server_does_not_keep_a_cancelled_task_s_lock(own_locks, own_server):
    async def use():
        async with own_locks.lock("warm"):
            pass
        with hanging(own_server):
            task = asyncio.create_task(own_locks.lock("a", timeout=60).aacquire())
            await asyncio.sleep(0.2)  # as long as it takes, it will not be answered
            task.cancel()
            await asyncio.sleep(0.2)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(use())
    free(own_locks, "a")


def test_a_hanging_server_keeps_no_other_servers_locks_from_renewal(own_locks, own_server):
    with own_locks.lock("a", timeout=8) as stuck, locks.lock("b", timeout=3) as lock:
        until = time.monotonic() + 6
        with hanging(own_server):
            while time.monotonic() < until:
                assert not lock.lost
                assert locks.get("b") is not None
        assert stuck.owned()


def test_a_waiter_whose_connection_is_killed_keeps_its_place(own_locks, own_redis):
    entered = []

    def hold(number):
        with own_locks.lock("a"):
            entered.append(number)

    with own_locks.lock("a"):
        futures = []
        for number in range(3):
            futures.append(start(hold, number))
            waiting(own_locks, "a", number + 1)
        cut_connections(own_redis)
        waiting(own_locks, "a", 3)
    for future in futures:
        future.result(60)
    assert entered == [0, 1, 2]


def test_a_waiter_is_told_at_once_when_its_server_stops(own_locks, own_server):
    lock = own_locks.lock("a", timeout=1)
    assert lock.acquire()
    waiter = start(own_locks.lock("a", blocking_timeout=30).acquire)
    waiting(own_locks, "a", 1)
    own_server.stop()
    with within(3), pytest.raises(ConnectionError):
        waiter.result(60)
    with pytest.raises((LockLost, ConnectionError)):
        lock.release()


@pytest.mark.slow
def test_a_waiter_whose_alias_retries_goes_on_through_a_restart(alias_on, own_server):
    retry = Retry(ConstantBackoff(0.1), 100, supported_errors=(ConnectionError, OSError))
    own = alias_on(own_server.url, retry=retry, retry_on_error=[ConnectionError])
    holder = own.lock("a", timeout=30)
    assert holder.acquire()
    entered = threading.Event()

    def hold():
        with own.lock("a"):
            entered.set()

    waiter = start(hold)
    waiting(own, "a", 1)
    own_server.stop()
    own_server.start()
    # Its data is gone, and with it the lock that was waited for.
    waiter.result(60)
    assert entered.is_set()
    with pytest.raises(LockLost):
        holder.release()


def test_a_restarted_server_is_used_again_at_once(alias_on, either_backend, own_server):
    own = alias_on(own_server.url, backend=either_backend)
    for _ in range(3):
        with own.lock("a"):
            pass
        own_server.stop()
        own_server.start()
    with own.lock("a") as lock:
        assert lock.owned()


@pytest.mark.slow
def test_a_restarted_server_is_used_again_at_once_in_async_too(
    alias_on, either_backend, own_server
):
    own = alias_on(own_server.url, backend=either_backend)

    async def use():
        for _ in range(3):
            async with own.lock("a", timeout=300):
                pass
            own_server.stop()
            own_server.start()
            await asyncio.sleep(0.1)  # for asyncio to see that the connection was closed

        async with own.lock("a", timeout=300) as lock:
            assert await lock.aowned()

    asyncio.run(use())


def test_fencing_tokens_grow_over_a_restart(own_locks, own_server):
    with own_locks.lock("a") as lock:
        before = lock.fence_token
    own_server.stop()
    own_server.start()
    with own_locks.lock("a") as lock:
        assert lock.fence_token > before


def test_scripts_may_be_forgotten_before_any_step(manager, redis_server):
    forget = redis_server.script_flush
    lock = manager.lock("a")
    forget()
    assert lock.acquire()
    steps = [
        lock.locked,
        lock.owned,
        lambda: lock.extend(1),
        lock.reacquire,
        lambda: manager.get("a"),
        manager.count,
        lambda: list(manager.active()),
        lambda: not manager.lock("a", blocking_timeout=0.05).acquire(),
    ]
    for step in steps:
        forget()
        assert step()
    forget()
    lock.release()
    assert lock.acquire()
    forget()
    assert manager.force_release("a") == 1
    forget()
    with pytest.raises(LockLost):
        lock.release()


def test_scripts_may_be_forgotten_before_any_asynchronous_step(manager, redis_server):
    forget = redis_server.script_flush

    async def use():
        lock = manager.lock("a")
        forget()
        assert await lock.aacquire()
        steps = [
            lock.alocked,
            lock.aowned,
            lambda: lock.aextend(1),
            lock.areacquire,
            lambda: manager.aget("a"),
            manager.acount,
        ]
        for step in steps:
            forget()
            assert await step()
        forget()
        assert [info.name async for info in manager.aactive()] == ["a"]
        forget()
        assert await manager.lock("a", blocking_timeout=0.05).aacquire() is False
        forget()
        await lock.arelease()
        assert await lock.aacquire()
        forget()
        assert await manager.aforce_release("a") == 1
        forget()
        with pytest.raises(LockLost):
            await lock.arelease()

    asyncio.run(use())


def test_scripts_may_be_forgotten_while_one_waits(manager, redis_server):
    with manager.lock("a"):
        waiter = start(manager.lock("a", blocking_timeout=10).acquire)
        waiting(manager, "a", 1)
        redis_server.script_flush()
    assert waiter.result(60)
    assert manager.force_release("a") == 1


GIVES_BACK = """
import time
from redis.exceptions import ConnectionError
from django_redislock import locks

def fails(function):
    try:
        function()
    except ConnectionError:
        return True

held = locks.lock("a", timeout=60)
held.acquire()
say("holds")
hear()
assert fails(held.release)
assert fails(locks.lock("b").acquire)
before = time.process_time()
say("failed")
hear()
say(time.process_time() - before)
"""


@pytest.mark.slow
def test_what_could_not_be_given_back_costs_no_work(own_server):
    with Child(GIVES_BACK, REDIS_URL=own_server.url) as child:
        child.expect("holds")
        own_server.stop()
        child.tell()
        child.expect("failed")
        until = time.monotonic() + 2
        wait_until(lambda: time.monotonic() > until)
        child.tell()
        assert float(child.expect("")) < 0.5


@pytest.mark.hurried
def test_a_server_that_lets_nobody_connect_is_an_error_when_the_wait_is_over(
    own_locks, own_server, own_redis
):
    assert own_redis.ping()
    with hanging(own_server), within(2), pytest.raises(TimeoutError):
        own_locks.lock("a", blocking_timeout=1).acquire()


@pytest.mark.parametrize("options", [{}, ASKED_FIRST], ids=["", "asked first"])
def test_a_loss_is_told_while_the_server_still_hangs(alias_on, own_server, options):
    own_locks, told = alias_on(own_server.url, **options), threading.Event()
    lock = own_locks.lock("a", timeout=1.5, on_lost=lambda lock: told.set())
    assert lock.acquire()
    with hanging(own_server):
        assert told.wait(4)
    with pytest.raises(LockLost):
        lock.release()


def test_a_loss_is_told_when_the_lease_ends_and_not_when_it_would_be_tried_again(
    own_locks, own_server
):
    lock = own_locks.lock("a", timeout=2)
    assert lock.acquire()
    [lease] = lock._own().leases
    own_server.stop()

    def is_lost():
        assert lease.due <= lease.deadline
        return lock.lost

    wait_until(is_lost)


def test_a_loss_is_told_in_time_while_something_is_to_be_given_back(own_locks, own_server):
    told = []
    lock = own_locks.lock("a", timeout=1.5, on_lost=lambda lock: told.append(clock.now()))
    assert lock.acquire()
    with hanging(own_server):
        with pytest.raises(TimeoutError):
            own_locks.lock("b", blocking_timeout=0.3).acquire()
        wait_until(lambda: told)
    [lease] = lock._own().leases
    assert told[0] < lease.deadline + 1
    with pytest.raises(LockLost):
        lock.release()
    free(own_locks, "b")


@pytest.mark.slow
def test_an_interrupted_connect_leaves_the_pool_whole(alias_on, own_server):
    own = alias_on(own_server.url, max_connections=2)

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(3):
            with hanging(own_server), within(5):
                signal.setitimer(signal.ITIMER_REAL, 0.2)
                with pytest.raises(KeyboardInterrupt):
                    own.lock("a", blocking_timeout=5).acquire()
            free(own, "a")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    with own.lock("a", blocking_timeout=5):
        pass


def test_a_connection_that_came_as_its_waiter_was_interrupted_goes_back(alias_on, own_server):
    own = alias_on(own_server.url, max_connections=1)

    def interrupt(number, frame):
        os.kill(own_server.pid, signal.SIGCONT)
        wait_until(lambda: not fetching())
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with hanging(own_server):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt):
                own.lock("a", blocking_timeout=5).acquire()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    free(own, "a")
    with own.lock("a", blocking_timeout=5):
        pass


@pytest.mark.slow
def test_a_connect_that_fails_after_its_wait_is_over_harms_nobody(alias_on):
    with EmbeddedServer() as server:
        own = alias_on(server.url, max_connections=1)
        with hanging(server):
            with pytest.raises(TimeoutError):
                own.lock("a", blocking_timeout=0.3).acquire()
            assert fetching()
            os.kill(server.pid, signal.SIGKILL)
        server.stop()
        wait_until(lambda: not fetching())
        server.start()
        free(own, "a")
        with own.lock("a", blocking_timeout=5):
            pass


# A server that is full


def test_a_full_server_lets_holders_renew_extend_and_release_but_nobody_new_in(
    own_locks, own_redis
):
    lock, kept = own_locks.lock("a", timeout=1.5), own_locks.lock("b", at_least_for=1, timeout=30)
    assert lock.acquire()
    assert kept.acquire()
    own_redis.config_set("maxmemory", 1)
    first = own_locks.get("a").expires_at
    wait_until(lambda: own_locks.get("a").expires_at > first)
    lock.extend(10)
    assert lock.owned()
    with pytest.raises(ResponseError, match="maxmemory"):
        own_locks.lock("c").acquire()
    assert own_locks.count() == 2
    lock.release()
    kept.release()
    assert own_locks.get("b").state == "cooldown"


def test_a_full_server_hands_over_and_the_next_keeps_it(own_locks, own_redis):
    lock = own_locks.lock("a")
    assert lock.acquire()
    turn = start(own_locks.lock("a", timeout=2).acquire)
    waiting(own_locks, "a", 1)
    token = lock.token
    own_redis.config_set("maxmemory", 1)
    lock.release()
    assert turn.result(60)
    first = own_locks.get("a")
    assert first.token != token
    assert own_locks.force_release("a", first.token) == 1


def test_a_server_that_takes_no_writes_tells_of_what_it_keeps(own_locks, own_redis):
    gone = own_locks.lock("gone", timeout=0.1, auto_renewal=False)
    with own_locks.lock("a", timeout=60):
        assert gone.acquire()
        wait_until(lambda: not gone.locked())
        own_redis.config_set("min-replicas-to-write", 1)
        assert [info.name for info in own_locks.active()] == ["a"]
        assert own_locks.count() == own_locks.page().total == 1
        assert own_locks.history() == ()
        own_redis.config_set("min-replicas-to-write", 0)
        [event] = own_locks.history()
        assert (event.name, event.outcome) == ("gone", "expired")
