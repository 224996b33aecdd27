"""Waiters acquire a lock in the order in which they arrive. Some threads and one task of each
event loop read the grants of all."""

import asyncio
import signal
import threading
from functools import partial
from threading import Event

import pytest
from redis.exceptions import ResponseError, TimeoutError

from django_redislock import LockLost, locks
from django_redislock.lua import RELEASE
from tests.lock_tools import hanging, start, waiting, within
from tests.tools import Child, wait_until


def test_a_waiter_gets_a_full_lease():
    def hold():
        with locks.lock("a", timeout=30, auto_renewal=False):
            return locks.get("a").ttl

    with locks.lock("a"):
        waiter = start(hold)
        waiting(locks, "a", 1)
    assert 20 < waiter.result(60) <= 30


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


def test_an_error_of_the_reader_reaches_a_waiter(own_locks, own_redis):
    """The user of the server may not read inboxes."""
    own_redis.execute_command("ACL", "SETUSER", own_redis.acl_whoami(), "-blpop")
    with own_locks.lock("a"), pytest.raises(ResponseError, match=r"blpop|permission"):
        start(own_locks.lock("a").acquire).result(60)


@pytest.mark.hurried
def test_a_thread_that_waits_has_a_time_limit_if_redis_does_not_respond(own_locks, own_server):
    with own_locks.lock("a"):
        waits = start(partial(own_locks.lock("a").acquire, blocking_timeout=1))
        waiting(own_locks, "a", 1)
        with hanging(own_server), pytest.raises(TimeoutError):
            waits.result(60)


@pytest.mark.hurried
async def test_a_call_that_waits_for_a_connection_has_a_time_limit(alias_on, own_server):
    manager = alias_on(own_server.url, socket_timeout=None)
    with hanging(own_server):
        calls = [manager.lock(str(number)).aacquire(blocking_timeout=0.1) for number in range(8)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(each) for each in outcomes} == {TimeoutError}
    await asyncio.to_thread(wait_until, lambda: manager.count() == 0)
