"""Waiters acquire a lock in the order in which they arrive."""

import asyncio
import signal
import threading
from threading import Event

import pytest

from django_redislock import LockLost, locks
from django_redislock.lock_types import Mutex
from django_redislock.lua import RELEASE
from tests.lock_tools import start, waiting, within
from tests.tools import Child


@pytest.mark.parametrize(
    ("prolong", "least"), [(Mutex.reacquire, 20), (lambda lock: lock.extend(20), 40)]
)
def test_a_grant_that_is_reacquired_or_extended_has_its_full_lease(prolong, least):
    def hold():
        with locks.lock("a", timeout=30) as lock:
            prolong(lock)
            return locks.get("a").ttl

    with locks.lock("a"):
        waiter = start(hold)
        waiting(locks, "a", 1)
    assert least < waiter.result(60) <= least + 10


@pytest.mark.parametrize("timeout", [0.1, 30])
def test_a_waiter_without_renewal_gets_a_full_lease(timeout):
    lock = locks.lock("a", timeout=timeout, auto_renewal=False)

    def hold():
        assert lock.acquire()
        return locks.get("a"), lock.lost

    with locks.lock("a"):
        waiter = start(hold)
        waiting(locks, "a", 1)
    info, lost = waiter.result(60)
    if not lost:
        assert info.timeout == timeout
        assert timeout * 0.6 < info.ttl <= timeout
    locks.force_release("a")


def test_the_tasks_of_an_event_loop_share_three_connections(alias_on, own_server, own_redis):
    """Two connections are for calls, one is for waiting, and one is for the renewal."""
    manager = alias_on(own_server.url, client_name="ours", max_connections=4)
    most, acquired = 0, []

    async def acquire(number):
        nonlocal most
        async with manager.lock("a"):
            acquired.append(number)
            names = [each["name"] for each in own_redis.client_list()]
            most = max(most, names.count("ours"))

    async def use():
        await asyncio.gather(*map(acquire, range(300)))

    asyncio.run(use())
    assert sorted(acquired) == list(range(300))
    assert most <= 4


def test_a_grant_that_is_lost_is_found_by_a_heartbeat(redis_server):
    keys = locks._keys.of("a")
    holder, waiter = locks.lock("a"), locks.lock("a")
    assert holder.acquire()
    waits = start(_acquire_and_release, waiter)
    waiting(locks, "a", 1)
    # A changed release script, which grants the lock to the waiter without a notification.
    source = RELEASE.source.replace("read('RPUSH', waiter.inbox, grant)", "")
    args = ("a", holder.token, 0, holder.fence_token, "", 0)
    assert redis_server.eval(source, len(keys.all), *keys.all, *args) == 1
    assert waits.result(60)
    with pytest.raises(LockLost):
        holder.release()


def test_an_interrupt_of_the_reading_thread_does_not_affect_other_waiters():
    first, second = locks.lock("a"), locks.lock("a")
    interrupted = Event()

    def interrupt(*_):
        interrupted.set()
        raise KeyboardInterrupt

    main = threading.main_thread().ident
    before = signal.signal(signal.SIGUSR1, interrupt)

    def meddle():
        waiting(locks, "a", 1)  # the main thread, which reads the inbox
        waits = start(_acquire_and_release, second)
        waiting(locks, "a", 2)
        signal.pthread_kill(main, signal.SIGUSR1)
        assert interrupted.wait(60)
        locks.force_release("a")
        return waits

    try:
        assert start(locks.lock("a", auto_renewal=False).acquire).result(60)
        meddling = start(meddle)
        with pytest.raises(KeyboardInterrupt):
            first.acquire()
        assert meddling.result(60).result(60)
    finally:
        signal.signal(signal.SIGUSR1, before)


def _acquire_and_release(lock):
    with lock:
        return True


def test_all_waiters_of_a_dead_process_are_skipped(redis_server):
    with Child(DIES_WITH_WAITERS) as child:
        with locks.lock("a", timeout=30):
            child.tell("wait")
            waiting(locks, "a", 50)
            live = start(locks.lock("a").acquire)
            waiting(locks, "a", 51)
            child.kill()
        with within(30):  # a grant for each of the dead would last two seconds
            assert live.result(60)
        locks.force_release("a")


DIES_WITH_WAITERS = """
from threading import Thread
from django_redislock import locks
hear()
for _ in range(50):
    Thread(target=locks.lock("a").acquire, daemon=True).start()
hear()
"""
