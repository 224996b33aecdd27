"""Leases are kept for as long as their holders live, and a loss is told."""

import _thread
import asyncio
import gc
import logging
import math
import re
import sys
import threading
import time
import weakref
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import count, islice

import pytest
import redis

from django_redislock import Lock, LockLost, clock, locks
from django_redislock.engine import flows, renewal
from django_redislock.engine.drivers import run
from django_redislock.engine.lease import Lease
from django_redislock.engine.renewal import loop_book, thread_book
from django_redislock.keys import Keys
from django_redislock.lua import RENEW
from django_redislock.signals import lock_lost
from tests.faults.proxy import Proxy, runs
from tests.lock_tools import (
    arenewed,
    awaiting,
    commands,
    cut_connections,
    free,
    interrupt_at,
    renewed,
    start,
    until,
    waiting,
)
from tests.tools import Child, no_new_threads, wait_until


@pytest.fixture
def heard():
    """What the signal `lock_lost` said."""
    told = []

    def listen(sender, **about):
        told.append({"sender": sender, **about})

    lock_lost.connect(listen)
    yield told
    lock_lost.disconnect(listen)


def test_a_lock_lasts_as_long_as_its_holder_needs(manager):
    with manager.lock("a", timeout=1.5) as lock:
        first = info = manager.get("a")
        while info.expires_at < first.expires_at + timedelta(seconds=1.5):
            info = manager.get("a")
            assert info is not None
            assert info.token == first.token
            assert 0 < info.ttl <= 1.5
            assert not lock.lost
        assert info.acquired_at == first.acquired_at


def test_nobody_else_gets_in_meanwhile(manager):
    with manager.lock("a", timeout=1.5):
        assert manager.lock("a", blocking_timeout=2).acquire() is False


def test_without_renewal_it_runs_out(manager, heard):
    lost = threading.Event()
    lock = manager.lock("a", timeout=0.3, auto_renewal=False, on_lost=lambda lock: lost.set())
    assert lock.acquire()
    assert not lock.lost
    assert lost.wait(60)
    assert lock.lost
    free(manager, "a")
    with pytest.raises(LockLost):
        lock.release()
    assert [about["lock"] for about in heard] == [lock]


def renewal_threads():
    return {thread for thread in threading.enumerate() if thread.name == "redislock-renewal"}


def test_one_thread_renews_all_in_few_commands(redis_server):
    before = renewal_threads()  # of other tests' servers, soon to end
    held = [locks.lock(f"n{number}", timeout=3) for number in range(200)]
    assert all(lock.acquire() for lock in held)
    first = {info.name: info.expires_at for info in locks.active()}

    def all_renewed():
        return all(
            info.expires_at > first[info.name] + timedelta(seconds=1.5) for info in locks.active()
        )

    with commands(redis_server) as called:
        wait_until(all_renewed, interval=0.25)
        assert len(renewal_threads() - before) <= 1
    assert len(first) == locks.count() == 200
    assert not any(lock.lost for lock in held)
    # 16 for each look of this test at them, and as many for each of a few rounds.
    assert called["evalsha"] < 16 * 40
    for lock in held:
        lock.release()


def test_locks_on_other_servers_are_renewed_beside_each_other(own_locks):
    with locks.lock("a", timeout=1.5), own_locks.lock("a", timeout=1.5):
        renewed(locks, "a")
        renewed(own_locks, "a")


def test_a_longer_lease_is_not_cut_short_by_its_renewal(manager):
    with manager.lock("a", timeout=1.5) as lock:
        lock.extend(100)
        with manager.lock("b", timeout=1.5):
            renewed(manager, "b", times=2)
        assert manager.get("a").ttl > 90


def test_renewal_survives_killed_connections(manager, redis_server):
    with manager.lock("a", timeout=1.5) as lock:
        for _ in range(3):
            cut_connections(redis_server)
            renewed(manager, "a")
        assert not lock.lost


def test_renewal_survives_script_flush(manager, redis_server):
    with manager.lock("a", timeout=1.5) as lock:
        for _ in range(3):
            redis_server.script_flush()
            renewed(manager, "a")
        assert not lock.lost


def test_renewal_survives_a_server_that_pauses(own_locks, own_redis):
    with own_locks.lock("a", timeout=2) as lock:
        own_redis.client_pause(900, all=True)
        renewed(own_locks, "a")
        assert not lock.lost


def test_a_force_released_lock_is_lost_and_that_is_told_once(manager, heard):
    lost = []
    lock = manager.lock("a", timeout=1, on_lost=lost.append)
    assert lock.acquire()
    token, fence = lock.token, lock.fence_token
    assert manager.force_release("a") == 1
    wait_until(lambda: heard and lost)
    assert lock.lost
    with pytest.raises(LockLost):
        lock.assert_held()
    with pytest.raises(LockLost):
        lock.release()
    with manager.lock("b", timeout=1.5):
        renewed(manager, "b", times=2)
    assert lost == [lock]
    [about] = heard
    about.pop("signal")
    assert about == {
        "sender": type(lock),
        "lock": lock,
        "using": manager.alias,
        "name": "a",
        "kind": "mutex",
        "acquisition": about["acquisition"],
        "token": token,
        "fence_token": fence,
    }


def test_what_is_told_of_a_loss_may_take_its_time(manager):
    lost, enough = threading.Event(), threading.Event()

    def take_time(lock):
        lost.set()
        enough.wait(60)

    first = manager.lock("a", timeout=6, on_lost=take_time)
    others = [manager.lock(f"b:{number}", timeout=6) for number in range(20)]
    for lock in (first, *others):
        assert lock.acquire()
    manager.force_release("a")
    assert lost.wait(60)
    left = [lock._own().deadline - clock.now() for lock in others]
    enough.set()
    assert min(left) > 5  # each was renewed before anybody was told
    for lock in others:
        lock.release()
    with pytest.raises(LockLost):
        first.release()


def test_an_error_of_the_server_is_told_once_for_all_locks(own_locks, own_redis, caplog):
    held = [own_locks.lock(f"a:{number}", timeout=6) for number in range(40)]
    for lock in held:
        assert lock.acquire()
    own_redis.execute_command("ACL", "SETUSER", "default", "-evalsha", "-eval")
    wait_until(lambda: "Renewal of" in caplog.text)
    own_redis.execute_command("ACL", "SETUSER", "default", "+evalsha", "+eval")
    counts = re.findall(r"Renewal of (\d+) lock", caplog.text)
    assert max(map(int, counts)) > 20  # more than any bucket has
    for lock in held:
        lock.release()


def names_of(bucket, count):
    return islice((n for n in map(str, range(1000)) if Keys("any").of(n).bucket == bucket), count)


def test_what_somebody_wrote_over_one_lock_is_none_of_the_others(manager, redis_server):
    """Neither over its own key, nor over the index of its bucket."""
    of_first, of_second, of_third = ([*names_of(bucket, 2)] for bucket in range(3))
    names = (*of_first, of_second[0], of_third[0])
    held = spoilt, neighbour, indexed, elsewhere = [manager.lock(n, timeout=1.5) for n in names]
    for lock in held:
        assert lock.acquire()
    redis_server.set(manager._keys.of(spoilt.name).lock, "theirs")
    redis_server.delete(manager._keys.of(indexed.name).index)
    redis_server.set(manager._keys.of(indexed.name).index, "theirs")
    wait_until(lambda: spoilt.lost and indexed.lost)
    assert not neighbour.lost
    assert not elsewhere.lost
    redis_server.delete(manager._keys.of(spoilt.name).lock, manager._keys.of(indexed.name).index)
    for lock in (neighbour, elsewhere):
        lock.release()
    for lock in (spoilt, indexed):
        with pytest.raises(LockLost):
            lock.release()


def test_who_released_it_is_not_told_of_a_loss(manager, heard):
    lost = []
    with manager.lock("a", timeout=1, on_lost=lost.append):
        pass
    with manager.lock("b", timeout=1.5):
        renewed(manager, "b", times=3)  # for longer than "a" would last
    assert lost == heard == []


def test_a_release_while_its_renewal_is_under_way_is_no_loss(manager, heard):
    lock = manager.lock("a")
    assert lock.acquire()
    [lease] = lock._own().leases
    lock.release()
    verdicts = list(run(lease.server.client, flows.renew_all([lease], 2)))
    assert verdicts == [(lease, 0)]
    lease.book._judge(clock.now(), verdicts)
    assert not lease.lost
    assert heard == []


@pytest.mark.parametrize("stop", [sys.exit, pytest.fail])
def test_an_on_lost_that_would_exit_does_not_stop_renewal(manager, caplog, stop):
    with manager.lock("b", timeout=1.5) as other:
        lock = manager.lock("a", timeout=1, on_lost=lambda lock: stop("a"))
        assert lock.acquire()
        assert manager.force_release("a") == 1
        wait_until(lambda: "A round of renewals failed" in caplog.text)
        renewed(manager, "b")
        assert not other.lost
        assert lock.lost


def test_listeners_that_fail_do_not_stop_renewal(manager, caplog):
    def fail(*args, **about):
        raise ZeroDivisionError

    lock_lost.connect(fail)
    try:
        lock = manager.lock("a", timeout=1, on_lost=fail)
        with manager.lock("b", timeout=1.5) as other:
            assert lock.acquire()
            assert manager.force_release("a") == 1
            wait_until(lambda: "on_lost of lock 'a' failed" in caplog.text)
            renewed(manager, "b")
            assert not other.lost
    finally:
        lock_lost.disconnect(fail)
    with pytest.raises(LockLost):
        lock.release()


@pytest.fixture
def failing_log():
    """A filter of the product's logger that fails where a loss is logged."""

    def fail(record):
        return "was lost" not in record.msg or 1 / 0

    logger = logging.getLogger("django_redislock")
    logger.addFilter(fail)
    yield
    logger.removeFilter(fail)


def test_a_log_that_fails_does_not_stop_renewal(manager, failing_log, caplog):
    with manager.lock("b", timeout=1.5) as other:
        lock = manager.lock("a", timeout=1)
        assert lock.acquire()
        assert manager.force_release("a") == 1
        wait_until(lambda: "A round of renewals failed" in caplog.text)
        renewed(manager, "b")
        assert not other.lost
        assert lock.lost


def test_a_log_that_fails_does_not_stop_renewal_in_async(manager, failing_log, caplog):
    async def use():
        async with manager.lock("b", timeout=1.5) as other:
            lock = manager.lock("a", timeout=1)
            assert await lock.aacquire()
            assert await manager.aforce_release("a") == 1
            await until(failed)
            await arenewed(manager, "b")
            assert not other.lost
            assert lock.lost

    async def failed():
        return "A round of renewals failed" in caplog.text

    asyncio.run(use())


def test_a_lost_lock_can_not_abort_a_thread(manager, heard):
    lock = manager.lock("a", timeout=1, on_lost="abort")
    assert lock.acquire()
    assert manager.force_release("a") == 1
    wait_until(lambda: heard)
    with pytest.raises(LockLost):
        lock.assert_held()
    with pytest.raises(LockLost):
        lock.release()


def test_on_lost_may_use_locks_itself(manager):
    took = []

    def take_again(lost):
        again = manager.lock("a", blocking=False)
        took.append(again.acquire())
        again.release()

    lock = manager.lock("a", timeout=1, on_lost=take_again)
    assert lock.acquire()
    assert manager.force_release("a") == 1
    wait_until(lambda: took)
    assert took == [True]


def test_a_lock_that_nobody_has_any_more_is_left_to_run_out(manager):
    lock = manager.lock("a", timeout=1.5)
    assert lock.acquire()
    renewed(manager, "a")
    with pytest.warns(ResourceWarning, match="'a' was not released"):
        del lock
    free(manager, "a")


def test_a_lock_whose_thread_ended_is_left_to_run_out(manager, heard):
    lock = manager.lock("a", timeout=0.6)
    assert start(lock.acquire).result(60)
    free(manager, "a")
    wait_until(lambda: heard)
    assert heard[0]["lock"] is lock


def test_a_lock_whose_thread_was_not_started_by_threading_is_not_renewed_after_its_end(manager):
    lock, held, may_end = manager.lock("a", timeout=0.6), threading.Event(), threading.Event()

    def hold():
        assert lock.acquire()
        held.set()
        may_end.wait()

    _thread.start_new_thread(hold, ())
    held.wait(60)
    renewed(manager, "a", times=2)
    may_end.set()
    free(manager, "a")
    assert lock.lost


ENDED_THREAD = """
import threading, time
from django_redislock import locks
lock = locks.lock("a", timeout=6)
thread = threading.Thread(target=lock.acquire)
thread.start()
thread.join()
before = time.process_time()
hear()
say(time.process_time() - before)
"""


def test_a_lease_whose_thread_is_gone_keeps_no_other_from_being_renewed():
    lock = locks.lock("a", timeout=30)
    book = renewal.ThreadBook(lock._server())
    book.wake = lambda: None  # its rounds are asked for below
    keys, leases = book.server.keys.of("a"), []
    for owner in (threading.Thread(), threading.current_thread()):
        lease = Lease(book, keys, "b", 30, owner=owner, kind="mutex", weight=1, renewed=True)
        lease.begin(1, clock.now() + 30, confirmed=True)
        lease.due = 0
        leases.append(lease)
    del owner
    gc.collect()

    assert leases[0].owner() is None
    assert book._to_renew() == leases[1:]


@pytest.mark.slow
def test_a_lock_whose_thread_ended_costs_no_work_until_it_runs_out():
    with Child(ENDED_THREAD) as child:
        wait_until(lambda: locks.get("a"), timeout=60)
        wait_until(lambda: locks.get("a").ttl < 1)
        child.tell()
        assert float(child.expect("")) < 0.5
    free(locks, "a")


def test_a_lock_that_was_handed_over_is_renewed(manager):
    done = threading.Event()

    def hold():
        with manager.lock("a", timeout=1.5) as lock:
            done.wait(60)
            return lock.lost

    with manager.lock("a"):
        waiter = start(hold)
        waiting(manager, "a", 1)
    renewed(manager, "a", times=3)  # the first confirms that the turn was taken
    done.set()
    assert waiter.result(60) is False


def test_renewal_goes_on_while_the_holder_is_busy():
    # A holder that computes without a pause leaves the renewal its share of the interpreter.
    with locks.lock("a", timeout=1.5) as lock:
        until = time.monotonic() + 2
        while time.monotonic() < until:
            sum(range(1000))
        assert not lock.lost
        assert lock.owned()


def test_a_process_ends_while_it_holds_a_renewed_lock():
    code = "from django_redislock import locks\nlocks.lock('a', timeout=1).acquire()\n"
    code += "kept = locks.lock('b', timeout=1)\nkept.acquire()\nsay('bye')\n"
    with Child(code) as child:
        child.expect("bye")
        assert child.wait() == 0
    free(locks, "a")
    free(locks, "b")


def test_an_extension_that_is_not_answered_counts_where_it_makes_the_lease_shorter():
    with locks.lock("a", timeout=30, auto_renewal=False) as lock:
        [lease] = lock._own().leases
        for replace, left in ((False, 30), (True, 2)):
            flow = flows.extend(lease, 2, replace=replace)
            next(flow)
            assert left - 1 < lease.deadline - clock.now() <= left
            with pytest.raises(ConnectionError):
                flow.throw(ConnectionError("reply lost"))
            assert left - 1 < lease.deadline - clock.now() <= left


def test_a_lease_is_taken_to_be_as_short_as_what_got_no_answer_may_yet_make_it(monkeypatch):
    """The request may come to the server after renewals that were sent later."""
    with locks.lock("a", timeout=30, auto_renewal=False) as lock:
        [lease] = lock._own().leases
        for seconds in (2, 5):
            flow = flows.extend(lease, seconds, replace=True)
            next(flow)
            with pytest.raises(ConnectionError):
                flow.throw(ConnectionError("reply lost"))
        for learns in (lambda: lease.renewed(clock.now(), 30), lambda: lock.extend(30)):
            learns()
            assert 1 < lease.deadline - clock.now() <= 2

        monkeypatch.setattr(lease, "_unsure_until", clock.now())
        lease.renewed(clock.now(), 30)
        assert lease.deadline - clock.now() > 2


def test_a_renewal_under_way_does_not_count_where_its_holder_makes_the_lease_shorter():
    with locks.lock("a", timeout=30) as lock:
        [lease] = lock._own().leases
        sent = clock.now()
        lock.extend(2, replace_ttl=True)
        lease.renewed(sent, 30)
        assert lease.deadline - clock.now() <= 2
        lease.renewed(clock.now(), 30)
        assert lease.deadline - clock.now() > 2


LATE = 4
"""Seconds by which the answer to an extension is late. The lease is less than half as long."""

EXTENSIONS = {
    "reacquire": lambda lock: lock.reacquire(),
    "extend": lambda lock: lock.extend(0.5),
    "extend, replace": lambda lock: lock.extend(1.2, replace_ttl=True),
}
ASYNC_EXTENSIONS = {
    "reacquire": lambda lock: lock.areacquire(),
    "extend": lambda lock: lock.aextend(0.5),
    "extend, replace": lambda lock: lock.aextend(1.2, replace_ttl=True),
}


@pytest.fixture
def behind_proxy(alias_on, own_server):
    with Proxy("127.0.0.1", own_server.port) as proxy:
        yield alias_on(proxy.url, socket_timeout=None), proxy


def extends(command):
    """Whether the holder extends its lease. A renewal asks for exactly the lease's 1.5 seconds."""
    return runs(RENEW)(command) and not any(part.endswith(b" 1500") for part in command)


def sets_or_extends(kind):
    if kind == "reacquire":
        return lambda command: runs(RENEW)(command) and b"set" in command
    return extends


@pytest.mark.parametrize("kind", EXTENSIONS)
def test_a_lease_is_renewed_while_its_extension_is_under_way(behind_proxy, kind):
    own, proxy = behind_proxy
    lost = []
    with own.lock("a", timeout=1.5, on_lost=lost.append) as lock:
        renewed(own, "a")  # the server knows the script
        late = proxy.delay_reply(sets_or_extends(kind), LATE)
        assert EXTENSIONS[kind](lock)
        assert late.is_done()
        assert not lock.lost
    assert lost == []


@pytest.mark.parametrize("kind", ASYNC_EXTENSIONS)
def test_a_lease_is_renewed_while_its_extension_is_under_way_in_async_too(behind_proxy, kind):
    own, proxy = behind_proxy
    lost = []

    async def use():
        async with own.lock("a", timeout=1.5, on_lost=lost.append) as lock:
            await arenewed(own, "a")
            late = proxy.delay_reply(sets_or_extends(kind), LATE)
            assert await ASYNC_EXTENSIONS[kind](lock)
            assert late.is_done()
            assert not lock.lost

    asyncio.run(use())
    assert lost == []


def test_the_holder_takes_its_lease_to_end_before_the_server_does():
    """The server counts in whole milliseconds, of which one may be nearly over."""
    for _ in range(100):
        with locks.lock("a", timeout=30.0004) as lock:
            [lease] = lock._own().leases
            ends = []
            for change in (lambda: None, lock.reacquire, partial(lock.extend, 5)):
                change()
                told = time.time() - clock.now() + lease.deadline
                ends.append(told - lock_end("a"))
        assert max(ends) < 0


def lock_end(name):
    return locks.get(name).expires_at.timestamp()


def test_a_renewal_counts_for_no_more_than_was_asked_for():
    """A server whose clock was set back keeps a lease for longer, until that is set right."""
    with locks.lock("a", timeout=30) as lock:
        [lease] = lock._own().leases
        run(lease.server.client, flows.renew(lease.keys, lease.token, 3600, "renew"))

        [(_, left)] = run(lease.server.client, flows.renew_all([lease], 2))
        assert left > 3590
        lease.renewed(clock.now(), left)
        assert 25 < lease.deadline - clock.now() <= 30

        lock.extend(20)
        assert 45 < lease.deadline - clock.now() <= 50


def test_a_lock_is_acquired_without_renewal_if_no_thread_can_be_started(own_locks, caplog):
    lock = own_locks.lock("a", timeout=1.5, blocking_timeout=5)
    with no_new_threads():
        assert lock.acquire()
        assert lock.owned()
    assert "Lock is not renewed: name='a'" in caplog.text
    with own_locks.lock("b", timeout=1.5):  # the next lease starts the renewal of both
        renewed(own_locks, "a")
    lock.release()
    assert own_locks.get("a") is None


def test_no_warning_without_auto_renewal_if_no_thread_can_be_started(own_locks, caplog):
    with no_new_threads(), own_locks.lock("a", timeout=30, auto_renewal=False):
        assert own_locks.get("a").ttl > 25
    assert own_locks.get("a") is None
    assert not caplog.text


def test_a_waiter_gets_its_full_lease_if_no_thread_can_be_started(own_server, own_redis):
    """The renewal would confirm it, and without that it ends after two seconds."""
    with (
        redis.Redis.from_url(own_server.url) as first,
        redis.Redis.from_url(own_server.url) as other,
    ):
        holder, waiter = Lock(first, "a", timeout=30), Lock(other, "a", timeout=30)
        ready = threading.Event()

        def hold():
            with holder:
                ready.set()
                wait_until(lambda: own_redis.info("clients")["blocked_clients"])

        held = start(hold)
        assert ready.wait(60)
        with no_new_threads():
            assert waiter.acquire()
        held.result(60)
        time.sleep(2.5)
        assert waiter.owned()
        waiter.release()


AT_EXIT = """
import atexit
from django_redislock import locks
def use():
    with locks.lock("a", timeout=30, blocking_timeout=5) as lock:
        say(f"owned {lock.owned()}")
    say(f"left {locks.get('a')}")
    with locks.lock("a", timeout=30, auto_renewal=False, blocking=False) as lock:
        say(f"owned {lock.owned()}")
atexit.register(use)
"""


def test_a_lock_is_acquired_and_released_at_interpreter_exit():
    with Child(AT_EXIT) as child:
        assert child.expect("owned") == "True"
        assert child.expect("left") == "None"
        assert child.expect("owned") == "True"
        assert child.wait() == 0
    assert locks.get("a") is None


def test_a_turn_is_confirmed_soon():
    holder = locks.lock("a", timeout=30)
    assert holder.acquire()

    def use():
        with locks.lock("a", timeout=30) as lock:
            wait_until(lambda: locks.get("a").ttl > 20, timeout=flows.CLAIM / 2)
            return lock.lost

    waits = start(use)
    waiting(locks, "a", 1)
    holder.release()
    assert waits.result(60) is False


def test_every_lock_object_that_holds_is_told_of_the_loss_once():
    told = []
    outer = locks.lock("a", timeout=1.5, reentrant=True, on_lost=told.append)
    inner = locks.lock("a", timeout=1.5, reentrant=True, on_lost=told.append)
    many = locks.lock_many(["a", "b"], timeout=1.5, reentrant=True, on_lost=told.append)
    for lock in (outer, inner, many, outer):
        assert lock.acquire()
    assert locks.force_release("a") == 1
    wait_until(lambda: len(told) == 3)
    for lock in (outer, many, inner, outer):
        assert lock.lost
        with pytest.raises(LockLost):
            lock.release()
    assert sorted(map(repr, told)) == sorted(map(repr, (outer, inner, many)))


@pytest.fixture
def soon_idle(monkeypatch):
    monkeypatch.setattr(renewal, "IDLE", 0.05)


def ends(book):
    wait_until(lambda: book._thread is None)


async def aends(book):
    async def ended():
        return book._task is None

    await until(ended)


def test_a_renewer_without_leases_ends_and_the_next_lease_starts_another(own_locks, soon_idle):
    book = thread_book(own_locks._server(), "a")
    for _ in range(2):
        with own_locks.lock("a", timeout=1.5):
            assert book._thread
            renewed(own_locks, "a")
        ends(book)


def test_a_renewer_without_leases_ends_in_async_too(own_locks, soon_idle):
    async def use():
        book = loop_book(own_locks._server(), "a")
        for _ in range(2):
            async with own_locks.lock("a", timeout=1.5):
                assert book._task
                await arenewed(own_locks, "a")
            await aends(book)

    asyncio.run(use())


def test_locks_that_come_and_go_leave_the_renewer_asleep(own_locks, monkeypatch):
    book, woken = thread_book(own_locks._server(), "a"), []
    with own_locks.lock("a", timeout=60):
        wait_until(lambda: math.isfinite(book._next))
        monkeypatch.setattr(book, "wake", lambda: woken.append(1))
        for _ in range(20):
            with own_locks.lock("b", timeout=60):
                pass
    assert woken == []


def test_a_renewer_that_was_left_asleep_ends_not_before_its_leases(own_locks, monkeypatch):
    monkeypatch.setattr(renewal, "IDLE", 0.3)
    book = thread_book(own_locks._server(), "a")
    book.wake()
    wait_until(lambda: math.isfinite(book._next))
    with own_locks.lock("a", timeout=1.5):  # due after the renewer looks again
        renewed(own_locks, "a")
    ends(book)


def test_a_renewer_that_is_woken_as_it_ends_goes_on(own_locks, soon_idle):
    with own_locks.lock("a", timeout=1.5):
        book = thread_book(own_locks._server(), "a")
        thread = book._thread

    def is_ending():
        return sys._current_frames()[thread.ident].f_code.co_name == "_ends"

    with book._starting:
        wait_until(is_ending)
        book._awake.set()  # as `wake` does, which has this lock for it
    with own_locks.lock("a", timeout=1.5):
        renewed(own_locks, "a")
    ends(book)
    thread.join(60)
    assert not thread.is_alive()


def test_an_interrupt_while_it_is_woken_does_not_stop_the_renewer(own_locks):
    with own_locks.lock("a", timeout=1.5):
        book = thread_book(own_locks._server(), "a")
        for step in count(1):
            waking = interrupt_at(step, renewal.ThreadBook.wake.__code__)
            with suppress(KeyboardInterrupt), waking as struck:
                book.wake()
            renewed(own_locks, "a")
            if not struck:
                break
        assert step > 2


def test_a_lease_that_seems_to_last_for_ever_does_not_stop_the_renewer(own_locks):
    with own_locks.lock("a", timeout=30) as lasting:
        [lease] = lasting._own().leases
        lease.keep(clock.now() + threading.TIMEOUT_MAX * 10)
        lease.book.wake()
        with own_locks.lock("b", timeout=1.5):
            renewed(own_locks, "b")


def test_all_who_ask_at_the_same_time_get_the_same_book(own_locks):
    def ask(name, replicas):
        together.wait(60)
        return thread_book(server, name, replicas)

    server, together = own_locks._server(), threading.Barrier(8)
    for replicas in range(50):  # each a book of its own
        asked = [start(ask, "a", replicas) for _ in range(8)]
        assert len({each.result(60) for each in asked}) == 1


def test_a_renewer_that_has_nothing_left_to_do_is_forgotten(own_locks, soon_idle):
    with own_locks.lock("a", timeout=1.5):
        book = thread_book(own_locks._server(), "a")
    ends(book)
    gone = weakref.ref(book)
    del book
    wait_until(lambda: gone() is None)  # its thread may yet be about to end


@pytest.fixture
def another(alias_on, own_server):
    """Locks of another alias on the same server: the same ones, renewed by another."""
    return alias_on(own_server.url, alias="another")


@pytest.mark.slow
def test_a_renewer_that_ended_while_one_waited_starts_again(another, own_locks, soon_idle):
    def hold():
        with own_locks.lock("a", timeout=1.5):
            renewed(own_locks, "a")

    with another.lock("a"):
        waiter = start(hold)
        waiting(own_locks, "a", 1)
        with own_locks.lock("b", timeout=1.5):
            pass
        ends(thread_book(own_locks._server(), "a"))
    waiter.result(60)


@pytest.mark.slow
def test_a_renewer_that_ended_while_one_waited_starts_again_in_async_too(
    another, own_locks, soon_idle
):
    async def hold():
        async with own_locks.lock("a", timeout=1.5):
            await arenewed(own_locks, "a")

    async def use():
        async with another.lock("a"):
            waiter = asyncio.create_task(hold())
            await awaiting(own_locks, "a", 1)
            async with own_locks.lock("b", timeout=1.5):
                pass
            await aends(loop_book(own_locks._server(), "a"))
        await waiter

    asyncio.run(use())


def test_what_is_got_after_its_lease_was_ended_is_given_back():
    lock = locks.lock("a", timeout=60)
    [(book, name)] = lock._targets(thread_book)
    lease = lock._new_lease(book, name, None, lock._owner())
    lease.end()  # as an interrupt does that could not wait for the answer
    want = lock._want(lease.keys, lease.token)
    assert run(book.server.client, flows.take(lease, want, None)) is False
    assert locks.get("a") is None


def test_turns_that_come_and_go_leave_the_renewer_asleep(own_locks, monkeypatch):
    book, woken = thread_book(own_locks._server(), "a"), []
    take_turns(own_locks, 2)
    wait_until(lambda: math.isfinite(book._next))
    monkeypatch.setattr(book, "wake", lambda: woken.append(1))

    take_turns(own_locks, 20)

    assert len(woken) <= 2  # only while it looks what is due next


def take_turns(own_locks, count):
    """So often it is acquired by one who waited."""

    def wait():
        with own_locks.lock("a", timeout=30):
            pass

    for _ in range(count):
        with own_locks.lock("a", timeout=30):
            waiter = start(wait)
            waiting(own_locks, "a", 1)
        waiter.result(60)
