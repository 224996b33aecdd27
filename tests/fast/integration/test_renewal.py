"""Leases are renewed while their holders live, and a loss is reported."""

import asyncio
import math
import os
import re
import sys
import threading
import time
from functools import partial
from weakref import ref

import pytest
import redis

from django_redislock import LockLost, clock, locks
from django_redislock.engine import protocol, registry, renewer
from django_redislock.engine.registry import should_renew
from django_redislock.engine.renewer import thread_renewer
from django_redislock.engine.runners import _perform, run
from django_redislock.lock_types import Mutex
from django_redislock.lock_types.lease_flows import extend_lease
from django_redislock.lua import RENEW
from django_redislock.signals import lock_lost
from tests.faults.proxy import runs
from tests.lock_tools import (
    acquisition_of,
    arenewed,
    commands,
    cut_connections,
    free,
    hanging,
    lease_of,
    listening,
    renewed,
    start,
    waiting,
)
from tests.tools import no_new_threads, wait_until


@pytest.fixture
def heard():
    sent = []
    with listening(lock_lost, lambda **about: sent.append(about)):
        yield sent


def renewal_threads():
    return {thread for thread in threading.enumerate() if thread.name == "redislock-renewal"}


def test_one_thread_renews_all_in_few_commands(redis_server, moving_clock):
    before = renewal_threads()  # of servers of other tests, which end soon
    held = [locks.lock(f"n{number}", timeout=30) for number in range(200)]
    assert all(lock.acquire() for lock in held)
    with commands(redis_server) as called:
        for _ in range(3):
            moving_clock.forward(15)
    assert len(renewal_threads() - before) <= 1
    assert not any(lock.lost for lock in held)
    assert called["evalsha"] < 3 * 200 / 10
    for lock in held:
        lock.release()


def test_an_unresponsive_server_does_not_delay_renewals_on_others(own_locks, own_server):
    with own_locks.lock("a", timeout=30) as stuck, locks.lock("a", timeout=1.5):
        lease_of(stuck).due = 0
        with hanging(own_server):
            lease_of(stuck).renewer.wake()
            renewed(locks, "a")


@pytest.mark.parametrize("harm", [cut_connections, redis.Redis.script_flush])
def test_a_renewal_survives_lost_connections_and_scripts(redis_server, moving_clock, harm):
    with locks.lock("a", timeout=30) as lock, locks.lock("b", timeout=1.5) as longer:
        longer.extend(100)
        for _ in range(3):
            harm(redis_server)
            moving_clock.forward(12)
            moving_clock.forward(2)  # an attempt that failed is repeated
        assert not lock.lost
        assert not longer.lost
        assert locks.get("b").ttl > 90, "a renewal does not shorten a longer lease"


def test_the_loss_of_a_force_released_lock_is_reported_once(heard, moving_clock):
    lost = []

    def take_again(lock):
        lost.append(lock)
        with locks.lock("a", blocking=False):
            pass

    lock = locks.lock("a", timeout=30, on_lost=take_again, reentrant=True)
    assert lock.acquire()
    held = {"token": lock.token, "fence_token": lock.fence_token}
    assert locks.force_release("a") == 1
    for _ in range(4):
        moving_clock.forward(15)
    assert lock.lost
    with locks.lock("a", reentrant=True, blocking=False) as again:
        assert not again.lost
        assert locks.get("a").fence_token == again.fence_token, "the lost one is not entered"
    for use in (lock.assert_held, lock.release):
        with pytest.raises(LockLost):
            use()
    assert lost == [lock]
    [about] = heard
    expected = {"sender": type(lock), "lock": lock, "using": locks.alias, "name": "a", **held}
    assert {fact: about[fact] for fact in expected} == expected


def test_all_locks_are_renewed_before_a_loss_is_reported(moving_clock):
    """A callback may be slow."""
    left = []
    others = [locks.lock(f"b:{number}", timeout=30) for number in range(20)]

    def look(lost):
        left.extend(other._visible_hold().deadline - moving_clock.now() for other in others)

    first = locks.lock("a", timeout=30, on_lost=look)
    for lock in (first, *others):
        assert lock.acquire()
    locks.force_release("a")
    moving_clock.forward(15)
    assert min(left) > 25
    for lock in others:
        lock.release()
    with pytest.raises(LockLost):
        first.release()


def test_an_error_of_the_server_is_logged_once_for_all_locks(
    own_locks, own_redis, caplog, moving_clock
):
    held = [own_locks.lock(f"a:{number}", timeout=30) for number in range(40)]
    for lock in held:
        assert lock.acquire()
    user = own_redis.acl_whoami()
    own_redis.execute_command("ACL", "SETUSER", user, "-evalsha", "-eval")
    moving_clock.forward(15)
    own_redis.execute_command("ACL", "SETUSER", user, "+evalsha", "+eval")
    assert re.findall(r"Renewal failed, will retry: locks=(\d+)", caplog.text) == ["40"]
    for lock in held:
        lock.release()


def test_a_release_during_a_renewal_is_not_a_loss(heard, moving_clock):
    lock = locks.lock("a")
    assert lock.acquire()
    lease = lease_of(lock)
    lock.release()
    verdicts = list(run(lease.server.client, protocol.renew_all([lease], 2)))
    assert verdicts == [(lease, 0)]
    lease.renewer._apply_renewals(clock.now(), verdicts)
    assert not lease.lost
    moving_clock.forward(60)
    assert heard == []


def fails(*args, **about):
    raise ZeroDivisionError


def exits(*args, **about):
    sys.exit()


@pytest.mark.parametrize("on_lost", [exits, fails])
def test_a_callback_or_a_receiver_that_fails_does_not_stop_renewal(caplog, on_lost):
    with listening(lock_lost, fails), locks.lock("b", timeout=1.5) as other:
        lock = locks.lock("a", timeout=0.5, on_lost=on_lost)
        assert lock.acquire()
        assert locks.force_release("a") == 1
        wait_until(lambda: "failed" in caplog.text)
        renewed(locks, "b")
        assert not other.lost
        assert lock.lost


@pytest.mark.parametrize(("options", "extension"), [({}, 28), ({"at_least_for": 30}, None)])
def test_a_longer_lease_does_not_delay_the_notice_of_a_loss(moving_clock, options, extension):
    lock = locks.lock("a", timeout=3, **options)
    assert lock.acquire()
    if extension:
        lock.extend(extension)
    assert locks.force_release("a") == 1
    moving_clock.forward(1.1)
    assert lock.lost
    with pytest.raises(LockLost):
        lock.release()


def has_failed_in(thread, caplog):
    """Return whether a round of this thread's renewer has failed, and not one of another."""
    failed = [each for each in caplog.records if "Renewal failed unexpectedly" in each.message]
    return thread in [each.thread for each in failed]


async def test_a_round_that_fails_does_not_stop_renewal_in_async(monkeypatch, caplog):
    loop_thread = threading.get_ident()
    async with locks.lock("a", timeout=1.5) as lock:
        with monkeypatch.context() as patch:
            patch.setattr(renewer.Renewer, "batches", fails)
            lease_of(lock).renewer.wake()
            await asyncio.to_thread(wait_until, lambda: has_failed_in(loop_thread, caplog))
        await arenewed(locks, "a")


def test_a_round_that_fails_does_not_stop_renewal(own_locks, monkeypatch, caplog):
    with own_locks.lock("a", timeout=1.5) as lock:
        book = lease_of(lock).renewer
        with monkeypatch.context() as patch:
            patch.setattr(renewer.Renewer, "batches", fails)
            book.wake()
            wait_until(lambda: book._worker and has_failed_in(book._worker.ident, caplog))
        renewed(own_locks, "a")
        assert not lock.lost


def test_the_renewer_looks_at_holds_while_their_thread_adds_and_removes_some(own_locks):
    def nest():
        with lock:
            while not ended.is_set():
                with lock, lock:
                    pass

    lock, ended = own_locks.lock("a", reentrant=True), threading.Event()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        nesting = start(nest)
        for _ in range(50_000):
            thread_renewer(own_locks._server()).watched()
    finally:
        ended.set()
        sys.setswitchinterval(interval)
    nesting.result(60)


class Registry(dict):
    """The holds of this process, and what another thread does at the worst moment."""

    def __init__(self, *, add=lambda: None, drop=False):
        self.add, self.drop = add, drop

    def setdefault(self, key, default):
        holds = super().setdefault(key, default)
        if self.drop:
            self.drop = False
            super().pop(key)
        return holds

    def pop(self, key, default=None):
        add, self.add = self.add, lambda: None
        add()
        return super().pop(key, default)


def test_a_hold_that_is_added_while_the_last_other_one_is_removed_is_known(own_locks, monkeypatch):
    first, second = (own_locks.semaphore("a", 2, timeout=30) for _ in range(2))
    monkeypatch.setattr(registry, "_holds", Registry(add=second.acquire, drop=True))
    with first:
        own_locks.assert_held("a")
    own_locks.assert_held("a")
    second.release()
    assert not registry._holds


def test_a_lock_whose_thread_ended_is_left_to_expire(heard, moving_clock):
    lock = locks.lock("a", timeout=30)
    assert start(lock.acquire).result(60)
    book = thread_renewer(lock._server())
    wait_until(lambda: not any(should_renew(lease) for lease in book.watched()))
    moving_clock.forward(15)
    assert book.seconds_to_next() > 5  # until it expires, it costs no work
    moving_clock.forward(16)
    assert heard[0]["lock"] is lock
    assert locks.force_release("a") == 1


def send_without_a_reply(lease, seconds, *, replace):
    flow = extend_lease(lease, seconds, replace=replace)
    next(flow)
    yield
    with pytest.raises(ConnectionError):
        flow.throw(ConnectionError("reply lost"))
    yield


def test_an_extension_without_a_reply_counts_if_it_shortens_the_lease(moving_clock):
    def left():
        return lease.deadline - clock.now()

    with locks.lock("a", timeout=30, auto_renewal=False) as lock:
        lease = lease_of(lock)
        for replace, seconds, counts in ((False, 2, 30), (True, 2, 2), (True, 5, 2)):
            for _ in send_without_a_reply(lease, seconds, replace=replace):
                assert counts - 1 < left() <= counts
        # The server may receive these requests after renewals that were sent later.
        lease.apply_renewal(clock.now(), 30)
        lock.extend(30)
        assert 1 < left() <= 2
        moving_clock.pass_time(61)
        lease.apply_renewal(clock.now(), 30)
        assert left() > 2
        sent = clock.now()  # a renewal in progress does not undo a shorter lease
        lock.extend(2, replace_ttl=True)
        lease.apply_renewal(sent, 30)
        assert left() <= 2
        lease.apply_renewal(clock.now(), 30)
        assert left() > 2


@pytest.mark.parametrize(
    "extend", [Mutex.reacquire, lambda lock: lock.extend(1, replace_ttl=True)]
)
def test_a_lease_is_renewed_while_its_extension_waits_for_a_reply(proxied, extend):
    """The reply to the extension takes longer than the lease."""
    own, proxy = proxied
    lost = []
    with own.lock("a", timeout=1.2, on_lost=lost.append) as lock:
        renewed(own, "a")  # the server knows the script
        late = proxy.delay_reply(lambda command: runs(RENEW)(command) and b"set" in command, 1.7)
        assert extend(lock)
        assert late.is_done()
        assert not lock.lost
    assert lost == []


def test_the_lease_ends_earlier_for_the_holder_than_on_the_server():
    """The server counts in whole milliseconds, and may count an incomplete one."""
    for _ in range(50):
        with locks.lock("a", timeout=30.0004) as lock:
            for change in (lambda: None, lock.reacquire, partial(lock.extend, 5)):
                change()
                ends = time.time() - clock.now() + lease_of(lock).deadline
                assert ends < locks.get("a").expires_at.timestamp()


def test_a_renewed_lease_counts_from_before_the_request(moving_clock, monkeypatch):
    sent = []

    def slow(*args):
        sent.append(moving_clock.now())
        answer = run(*args)
        moving_clock.pass_time(5)
        return answer

    monkeypatch.setattr(renewer, "run", slow)
    with locks.lock("a", timeout=30) as lock:
        moving_clock.forward(15)
        assert sent[0] < lock._visible_hold().deadline <= sent[0] + 30


def test_a_renewal_counts_for_at_most_the_requested_lease():
    """A server whose clock was set back keeps a lease for longer."""
    with locks.lock("a", timeout=30) as lock:
        lease = lease_of(lock)
        run(lease.server.client, protocol.renew(lease.keys, lease.token, 3600, "renew"))

        [(_, left)] = run(lease.server.client, protocol.renew_all([lease], 2))
        assert left > 3590
        lease.apply_renewal(clock.now(), left)
        assert 25 < lease.deadline - clock.now() <= 30

        lock.extend(20)
        assert 45 < lease.deadline - clock.now() <= 50


def test_a_lock_is_acquired_without_renewal_if_no_thread_can_be_started(own_locks, caplog):
    lock = own_locks.lock("a", timeout=1.5, blocking_timeout=5)
    with no_new_threads():
        with own_locks.lock("a", timeout=30, auto_renewal=False):
            assert "not renewed" not in caplog.text
        assert lock.acquire()
        assert lock.owned()
    assert "Lock is not renewed: name='a'" in caplog.text
    with own_locks.lock("b", timeout=1.5):  # the next lease starts the renewal of both
        renewed(own_locks, "a")
    lock.release()
    assert own_locks.get("a") is None


def test_a_waiter_gets_its_full_lease_if_no_thread_can_be_started(own_locks, alias_on, own_server):
    """The renewal would confirm the grant, which otherwise expires after two seconds."""
    waiter = alias_on(own_server.url, alias="other").lock("a", timeout=30)
    ready = threading.Event()

    def hold():
        with own_locks.lock("a"):
            ready.set()
            waiting(own_locks, "a", 1)

    held = start(hold)
    assert ready.wait(60)
    with no_new_threads():
        assert waiter.acquire()
    held.result(60)
    assert own_locks.get("a").ttl > 25
    waiter.release()


def test_a_reply_after_an_interrupt_in_another_thread_releases_the_lock():
    lock = locks.lock("a", timeout=60)
    acquisition = acquisition_of(lock)
    client, flow = lock._server().client, acquisition.flow()
    request = next(flow)
    acquisition.lease.end()  # like an interrupt that cannot wait for the reply
    release = flow.send(_perform(client, request))
    with pytest.raises(StopIteration):
        flow.send(_perform(client, release))
    assert locks.get("a") is None


def test_each_lock_object_of_the_hold_reports_the_loss_once(moving_clock):
    reported = []
    options = {"timeout": 30, "reentrant": True, "on_lost": reported.append}
    outer = locks.lock("a", **options)
    inner = locks.lock("a", **options)
    many = locks.lock_many(["a", "b"], **options)
    for lock in (outer, inner, many, outer):
        assert lock.acquire()
    assert locks.force_release("a") == 1
    moving_clock.forward(15)
    assert sorted(map(repr, reported)) == sorted(map(repr, (outer, inner, many)))
    for lock in (outer, many, inner, outer):
        assert lock.lost
        with pytest.raises(LockLost):
            lock.release()
    assert len(reported) == 3


def test_an_idle_renewer_ends_but_not_before_its_leases(own_locks, monkeypatch):
    def is_ending():
        return sys._current_frames()[thread.ident].f_code.co_name == "_ends"

    monkeypatch.setattr(renewer, "RENEWER_IDLE_SECONDS", 0.3)
    book = thread_renewer(own_locks._server())
    book.wake()
    wait_until(lambda: math.isfinite(book._wakes_at))
    with own_locks.lock("a", timeout=1.2):  # due after the renewer looks again
        renewed(own_locks, "a")
        thread = book._worker
    with book._starting:
        wait_until(is_ending)
        book._wakeup.set()  # like `wake()`, which holds this lock
    with own_locks.lock("a", timeout=1.5):
        renewed(own_locks, "a")
    wait_until(lambda: book._worker is None)


async def test_a_renewer_whose_task_was_cancelled_starts_again_only_for_a_lease(own_locks):
    book = renewer.loop_renewer(own_locks._server())
    book._restart()
    assert book._worker is None
    async with own_locks.lock("a"):
        book._worker.cancel()
        await asyncio.wait([book._worker])
        book._restart()
        assert book._worker


def test_a_renewer_that_is_garbage_is_replaced(own_locks, monkeypatch):
    server = own_locks._server()
    gone = ref(renewer.ThreadRenewer(server))
    monkeypatch.setitem(renewer._thread_renewers, (os.getpid(), (server, 9)), gone)
    book = thread_renewer(server, 9)
    assert isinstance(book, renewer.ThreadRenewer)
    renewer._forget((os.getpid(), (server, 9)), gone)  # late, and the other one stays
    assert thread_renewer(server, 9) is book


def test_a_grant_survives_a_short_outage(proxied, caplog):
    own, proxy = proxied
    holder, waiter = own.lock("a"), own.lock("a", timeout=30)
    assert holder.acquire()
    acquired, may_end = threading.Event(), threading.Event()

    def hold():
        with waiter:
            acquired.set()
            assert may_end.wait(30)
            waiter.assert_held()

    held = start(hold)
    waiting(own, "a", 1)
    holder.release()
    assert acquired.wait(10)
    proxy.refuse()
    proxy.cut()
    # Of the one that confirms the grant, which lasts two seconds until then.
    wait_until(lambda: caplog.text.count("Renewal failed") > 1)
    proxy.accept()
    wait_until(lambda: not own.get("a").unconfirmed)
    may_end.set()
    held.result(10)


# max_hold: a hold that lasts longer is lost, although its holder still runs


@pytest.mark.parametrize("make", [partial(locks.lock, "a"), partial(locks.lock_many, ["a", "b"])])
def test_the_lock_is_renewed_until_max_hold_and_then_lost(moving_clock, make):
    lost = []
    lock = make(timeout=30, max_hold=50, on_lost=lost.append)
    with lock:
        moving_clock.forward(25)  # each acquisition has its own
    assert lock.acquire()
    for _ in range(3):
        moving_clock.forward(15)
        lock.assert_held()
    assert lost == []
    moving_clock.forward(6)
    assert lost == [lock]
    assert lock.lost
    with pytest.raises(LockLost):
        lock.release()
    assert locks.get("a") is None


def test_the_lease_ends_at_max_hold(moving_clock):
    hangs = locks.lock("a", timeout=0.5, max_hold=0.7)
    assert hangs.acquire()
    free(locks, "a")
    with pytest.raises(LockLost):
        hangs.release()
    lock = locks.lock("a", timeout=30, max_hold=50)
    assert lock.acquire()
    lock.extend(100)
    assert locks.get("a").ttl <= 50  # so that others acquire it then
    moving_clock.pass_time(49)
    lock.assert_held()
    moving_clock.pass_time(2)
    for use in (lock.assert_held, lock.release):
        with pytest.raises(LockLost):
            use()


def test_the_wait_for_another_lock_does_not_count(hold, moving_clock):
    first = hold("b")
    lock = locks.lock_many(["a", "b"], timeout=30, max_hold=50)

    def acquire():
        assert lock.acquire()
        moving_clock.forward(1)  # the renewal confirms the grant
        moving_clock.forward(24)
        lock.assert_held()
        lock.release()

    acquiring = start(acquire)
    waiting(locks, "b", 1)
    moving_clock.forward(28)
    first.release()
    acquiring.result(60)
