"""Waiters acquire a lock in the order in which they arrive. Some threads and one task of each
event loop read the grants of all."""

import asyncio
import signal
import threading
from functools import partial
from threading import Event

import pytest
import redis
from redis.exceptions import ConnectionError, ResponseError, TimeoutError, TryAgainError

from django_redislock import AsyncLock, LockLost, locks
from django_redislock.engine import inbox, runners
from django_redislock.engine.waiters import ASK_AGAIN
from django_redislock.lock_types import Mutex
from django_redislock.lua import RELEASE
from tests.lock_tools import hanging, start, until, waiting, within
from tests.tools import Child, wait_until


@pytest.mark.parametrize(
    ("prolong", "renews", "least"),
    [
        (Mutex.reacquire, True, 20),
        (lambda lock: lock.extend(20), True, 40),
        (lambda lock: None, False, 20),
    ],
    ids=["reacquired", "extended", "without renewal"],
)
def test_a_waiter_gets_a_full_lease(prolong, renews, least):
    def hold():
        with locks.lock("a", timeout=30, auto_renewal=renews) as lock:
            prolong(lock)
            return locks.get("a").ttl

    with locks.lock("a"):
        waiter = start(hold)
        waiting(locks, "a", 1)
    assert least < waiter.result(60) <= least + 10


def test_the_tasks_of_an_event_loop_share_three_connections(alias_on, own_server, own_redis):
    """Two connections are for calls, one is for waiting, and one is for the renewal."""
    manager = alias_on(own_server.url, client_name="ours", max_connections=4)
    most = []

    async def acquire():
        async with manager.lock("a"):
            names = [each["name"] for each in own_redis.client_list()]
            most.append(names.count("ours"))

    async def use():
        await asyncio.gather(*[acquire() for _ in range(100)])

    asyncio.run(use())
    assert len(most) == 100
    assert max(most) <= 4


def test_a_grant_that_is_lost_is_found_by_a_heartbeat(redis_server):
    keys = locks._keys.of("a")
    holder = locks.lock("a")
    assert holder.acquire()
    waits = start(acquire_and_release)
    waiting(locks, "a", 1)
    # A changed release script, which grants the lock to the waiter without a notification.
    source = RELEASE.source.replace("read('RPUSH', waiter.inbox, grant)", "")
    args = ("a", holder.token, 0, holder.fence_token, "", 0)
    assert redis_server.eval(source, len(keys.all), *keys.all, *args) == 1
    assert waits.result(60)
    with pytest.raises(LockLost):
        holder.release()


def acquire_and_release():
    with locks.lock("a"):
        return True


def test_an_interrupt_of_the_reading_thread_does_not_affect_other_waiters():
    interrupted = Event()

    def interrupt(*_):
        interrupted.set()
        raise KeyboardInterrupt

    main = threading.main_thread().ident
    before = signal.signal(signal.SIGUSR1, interrupt)

    def meddle():
        waiting(locks, "a", 1)  # the main thread, which reads the inbox
        waits = start(acquire_and_release)
        waiting(locks, "a", 2)
        signal.pthread_kill(main, signal.SIGUSR1)
        assert interrupted.wait(60)
        locks.force_release("a")
        return waits

    try:
        assert start(locks.lock("a", auto_renewal=False).acquire).result(60)
        meddling = start(meddle)
        with pytest.raises(KeyboardInterrupt):
            locks.lock("a").acquire()
        assert meddling.result(60).result(60)
    finally:
        signal.signal(signal.SIGUSR1, before)


DIES_WITH_WAITERS = """
from threading import Thread
from django_redislock import locks
for _ in range(50):
    Thread(target=locks.lock("a").acquire, daemon=True).start()
hear()
"""


def test_all_waiters_of_a_dead_process_are_skipped():
    with locks.lock("a", timeout=30), Child(DIES_WITH_WAITERS):
        waiting(locks, "a", 50)
        live = start(locks.lock("a").acquire)
        waiting(locks, "a", 51)
    with within(30):  # a grant for each of the dead would last two seconds
        assert live.result(60)
    locks.force_release("a")


# The readers of an inbox


@pytest.mark.parametrize("waiter", ["thread", "task"])
def test_an_error_of_the_reader_reaches_a_waiter(own_locks, own_redis, waiter):
    """The user of the server may not read inboxes."""

    def wait():
        lock = own_locks.lock("a")
        return lock.acquire() if waiter == "thread" else asyncio.run(lock.aacquire())

    own_redis.execute_command("ACL", "SETUSER", own_redis.acl_whoami(), "-blpop")
    with own_locks.lock("a"), pytest.raises(ResponseError, match=r"blpop|permission"):
        start(wait).result(60)


def test_a_value_in_place_of_an_inbox_is_removed(own_locks, own_redis):
    """A string of another program, for example. Grants may be lost with it."""
    with own_locks.lock("a"):
        assert not own_locks.lock("a").acquire(blocking_timeout=0.05)
        [known] = runners._thread_inboxes[own_locks._server().client.connection_pool].values()
        own_redis.set(known.key, "x")
        waits = start(own_locks.lock("a", auto_renewal=False).acquire)
        wait_until(lambda: own_redis.type(known.key) != "string")
    assert waits.result(60)
    own_locks.force_release("a")


def new_waiter(manager, inbox_class, run):
    read_by = inbox_class("", run)
    return read_by, read_by.join(manager._keys.of("a"), "token")


def test_waiters_ask_again_if_the_slot_of_their_inbox_moves(manager):
    read_by, waiter = new_waiter(manager, inbox.ThreadInbox, runners.run)
    reading = read_by._read(1)
    next(reading)
    with pytest.raises(StopIteration):
        reading.send([TryAgainError()])
    assert waiter.news == ASK_AGAIN


async def test_a_grant_before_the_wait_counts_whatever_comes_later(manager):
    read_by, waiter = new_waiter(manager, inbox.LoopInbox, runners.arun)
    waiter.rides_outages = True
    read_by.deliver(b"%d 7 1000" % waiter.ticket)
    read_by.tell_all(ASK_AGAIN)
    read_by.read_failed(ConnectionError())  # nobody waits
    assert not read_by.outage
    assert await read_by.wait(None, waiter, 1) == (7, 1.0)


def test_a_signal_handler_waits_in_the_thread_that_reads():
    outcomes = []

    def wait_too(*_):
        outcomes.append(locks.lock("b").acquire(blocking_timeout=0.2))
        locks.force_release("a")

    before = signal.signal(signal.SIGALRM, wait_too)
    try:
        held = [start(locks.lock(name, auto_renewal=False).acquire) for name in "ab"]
        assert all(each.result(60) for each in held)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with locks.lock("a"):
            assert outcomes == [False]
    finally:
        signal.signal(signal.SIGALRM, before)
        locks.force_release("b")


@pytest.mark.parametrize("single", [True, False])
async def test_tasks_wait_with_one_client_after_another(own_server, monkeypatch, single):
    async def reader_has_ended():
        return "redislock-inbox" not in {task.get_name() for task in asyncio.all_tasks()}

    monkeypatch.setattr(inbox, "READER_IDLE_SECONDS", 0.05)
    for _ in range(2):
        options = {"single_connection_client": single}
        async with redis.asyncio.Redis.from_url(own_server.url, **options) as client:
            holder, other = (AsyncLock(client, "a", timeout=30) for _ in range(2))
            assert await holder.acquire()
            waits = asyncio.create_task(other.acquire(blocking_timeout=60))
            await until(lambda client=client: client.keys("*:queue:a"))
            await holder.release()
            assert await waits
            await other.release()
    await until(reader_has_ended)


@pytest.mark.hurried
def test_a_thread_that_waits_has_a_time_limit_if_redis_does_not_respond(own_locks, own_server):
    with own_locks.lock("a"):
        waits = start(partial(own_locks.lock("a").acquire, blocking_timeout=1))
        waiting(own_locks, "a", 1)
        with hanging(own_server), pytest.raises(TimeoutError):
            waits.result(60)


def test_a_thread_that_waits_for_several_locks_gets_them_after_an_outage(
    own_locks, own_redis, caplog
):
    def hold():
        with own_locks.lock_many(["a", "b", "c"]) as lock:
            return set(lock.fence_tokens)

    assert own_locks.lock("c", timeout=60).acquire()
    waits = start(hold)
    waiting(own_locks, "c", 1)
    own_redis.config_set("min-replicas-to-write", 1)
    wait_until(lambda: "through an outage" in caplog.text)
    own_redis.config_set("min-replicas-to-write", 0)
    own_locks.force_release("c")
    assert waits.result(60) == {"a", "b", "c"}


@pytest.mark.hurried
async def test_a_call_that_waits_for_a_connection_has_a_time_limit(alias_on, own_server):
    manager = alias_on(own_server.url, socket_timeout=None)
    with hanging(own_server):
        calls = [manager.lock(str(number)).aacquire(blocking_timeout=0.1) for number in range(8)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(each) for each in outcomes} == {TimeoutError}
    await asyncio.to_thread(wait_until, lambda: manager.count() == 0)
