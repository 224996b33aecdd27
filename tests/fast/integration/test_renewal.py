"""Leases are kept for as long as their holders live, and a loss is told."""

import _thread
import asyncio
import gc
import math
import re
import sys
import threading
import time
import weakref
from contextlib import suppress
from functools import partial
from itertools import count, islice

import pytest
import redis

from django_redislock import Lock, LockLost, clock, locks
from django_redislock.engine import protocol, queries, renewer
from django_redislock.engine.lease import Lease
from django_redislock.engine.renewer import loop_book, thread_book
from django_redislock.engine.runners import run
from django_redislock.keys import Keys
from django_redislock.lua import RENEW
from django_redislock.signals import lock_lost
from tests.faults.proxy import runs
from tests.lock_tools import (
    arenewed,
    commands,
    cut_connections,
    free,
    hanging,
    interrupt_at,
    renewed,
    start,
    until,
    waiting,
)
from tests.tools import no_new_threads, wait_until


@pytest.fixture
def heard():
    """What the signal `lock_lost` said."""
    told = []

    def listen(sender, **about):
        told.append({"sender": sender, **about})

    lock_lost.connect(listen)
    yield told
    lock_lost.disconnect(listen)


def test_a_lock_without_renewal_expires(heard):
    lost = threading.Event()
    lock = locks.lock("a", timeout=0.2, auto_renewal=False, on_lost=lambda lock: lost.set())
    assert lock.acquire()
    assert not lock.lost
    assert lost.wait(60)
    assert lock.lost
    free(locks, "a")
    with pytest.raises(LockLost):
        lock.release()
    assert [about["lock"] for about in heard] == [lock]


def renewal_threads():
    return {thread for thread in threading.enumerate() if thread.name == "redislock-renewal"}


def test_one_thread_renews_all_in_few_commands(redis_server, moving_clock):
    before = renewal_threads()  # of other tests' servers, soon to end
    held = [locks.lock(f"n{number}", timeout=30) for number in range(200)]
    assert all(lock.acquire() for lock in held)
    with commands(redis_server) as called:
        for _ in range(3):
            moving_clock.forward(15)
    assert len(renewal_threads() - before) <= 1
    assert not any(lock.lost for lock in held)
    assert called["evalsha"] <= 3 * 16  # one for each bucket
    for lock in held:
        lock.release()


def test_renewals_on_a_server_that_hangs_hold_up_no_other_servers(own_locks, own_server):
    with own_locks.lock("a", timeout=30) as stuck, locks.lock("a", timeout=1.5):
        stuck._own().leases[0].due = 0
        with hanging(own_server):
            stuck._own().leases[0].book.wake()
            renewed(locks, "a")


def test_a_renewal_does_not_shorten_a_longer_lease(moving_clock):
    with locks.lock("a", timeout=1.5) as lock:
        lock.extend(100)
        moving_clock.forward(80)
        assert locks.get("a").ttl > 90
        assert not lock.lost


@pytest.mark.parametrize("harm", [cut_connections, redis.Redis.script_flush])
def test_a_renewal_survives_lost_connections_and_scripts(redis_server, moving_clock, harm):
    with locks.lock("a", timeout=30) as lock:
        for _ in range(3):
            harm(redis_server)
            moving_clock.forward(12)
            moving_clock.forward(2)  # an attempt that failed is repeated
        assert not lock.lost


def test_the_loss_of_a_force_released_lock_is_reported_once(heard, moving_clock):
    lost = []
    lock = locks.lock("a", timeout=30, on_lost=lost.append)
    assert lock.acquire()
    token, fence = lock.token, lock.fence_token
    assert locks.force_release("a") == 1
    for _ in range(4):
        moving_clock.forward(15)
    assert lock.lost
    with pytest.raises(LockLost):
        lock.assert_held()
    with pytest.raises(LockLost):
        lock.release()
    assert lost == [lock]
    [about] = heard
    about.pop("signal")
    assert about == {
        "sender": type(lock),
        "lock": lock,
        "using": locks.alias,
        "name": "a",
        "kind": "mutex",
        "acquisition": about["acquisition"],
        "token": token,
        "fence_token": fence,
    }


def test_all_locks_are_renewed_before_a_loss_is_reported(moving_clock):
    """A callback may take its time."""
    left = []
    others = [locks.lock(f"b:{number}", timeout=30) for number in range(20)]

    def look(lost):
        left.extend(other._seen().deadline - moving_clock.now() for other in others)

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
    own_redis.execute_command("ACL", "SETUSER", "default", "-evalsha", "-eval")
    moving_clock.forward(15)
    own_redis.execute_command("ACL", "SETUSER", "default", "+evalsha", "+eval")
    assert re.findall(r"Renewal failed, will retry: locks=(\d+)", caplog.text) == ["40"]
    for lock in held:
        lock.release()


def names_of(bucket, count):
    return islice((n for n in map(str, range(1000)) if Keys("any").of(n).bucket == bucket), count)


def test_an_overwritten_key_costs_no_other_lock(redis_server, moving_clock):
    """Neither the key of a lock, nor the index of its bucket."""
    of_first, of_second, of_third = ([*names_of(bucket, 2)] for bucket in range(3))
    names = (*of_first, of_second[0], of_third[0])
    held = spoilt, neighbour, indexed, elsewhere = [locks.lock(n, timeout=30) for n in names]
    for lock in held:
        assert lock.acquire()
    redis_server.set(locks._keys.of(spoilt.name).lock, "theirs")
    redis_server.delete(locks._keys.of(indexed.name).index)
    redis_server.set(locks._keys.of(indexed.name).index, "theirs")
    for _ in range(4):
        moving_clock.forward(12)
    assert spoilt.lost
    assert indexed.lost
    assert not neighbour.lost
    assert not elsewhere.lost
    for lock in (neighbour, elsewhere):
        lock.release()
    redis_server.flushdb()


def test_a_release_while_its_renewal_is_under_way_is_no_loss(heard, moving_clock):
    lock = locks.lock("a")
    assert lock.acquire()
    [lease] = lock._own().leases
    lock.release()
    verdicts = list(run(lease.server.client, protocol.renew_all([lease], 2)))
    assert verdicts == [(lease, 0)]
    lease.book._judge(clock.now(), verdicts)
    assert not lease.lost
    moving_clock.forward(60)
    assert heard == []


def fails(*args, **about):
    raise ZeroDivisionError


def exits(*args, **about):
    sys.exit()


@pytest.fixture
def failing_receiver():
    lock_lost.connect(fails)
    yield
    lock_lost.disconnect(fails)


@pytest.mark.parametrize("on_lost", [exits, fails])
def test_a_callback_or_a_receiver_that_fails_does_not_stop_renewal(
    failing_receiver, caplog, on_lost
):
    with locks.lock("b", timeout=1.5) as other:
        lock = locks.lock("a", timeout=0.5, on_lost=on_lost)
        assert lock.acquire()
        assert locks.force_release("a") == 1
        wait_until(lambda: "failed" in caplog.text)
        renewed(locks, "b")
        assert not other.lost
        assert lock.lost


def test_a_round_that_fails_does_not_stop_renewal_in_async(monkeypatch, caplog):
    async def failed():
        return "Renewal failed unexpectedly" in caplog.text

    async def use():
        async with locks.lock("a", timeout=1.5) as lock:
            with monkeypatch.context() as patch:
                patch.setattr(renewer.Book, "tell_lost", fails)
                await until(failed)
            await arenewed(locks, "a")
            assert not lock.lost

    asyncio.run(use())


def test_a_lost_lock_can_not_abort_a_thread(heard, moving_clock):
    lock = locks.lock("a", timeout=30, on_lost="abort")
    assert lock.acquire()
    assert locks.force_release("a") == 1
    moving_clock.forward(15)
    assert heard
    with pytest.raises(LockLost):
        lock.assert_held()
    with pytest.raises(LockLost):
        lock.release()


def test_on_lost_may_use_locks_itself(moving_clock):
    took = []

    def take_again(lost):
        again = locks.lock("a", blocking=False)
        took.append(again.acquire())
        again.release()

    lock = locks.lock("a", timeout=30, on_lost=take_again)
    assert lock.acquire()
    assert locks.force_release("a") == 1
    moving_clock.forward(15)
    assert took == [True]


def test_a_lock_whose_thread_ended_is_left_to_expire(heard, moving_clock):
    lock = locks.lock("a", timeout=30)
    assert start(lock.acquire).result(60)
    book = thread_book(lock._server(), "a")
    wait_until(lambda: not any(lease.wants_renewal() for lease in book._current()))
    moving_clock.forward(15)
    assert book.seconds_to_next() > 5  # until it expires, it costs no work
    moving_clock.forward(16)
    assert heard[0]["lock"] is lock
    assert locks.force_release("a") == 1


def test_a_lock_whose_thread_was_not_started_by_threading_is_not_renewed_after_its_end():
    lock, held, may_end = locks.lock("a", timeout=0.9), threading.Event(), threading.Event()

    def hold():
        assert lock.acquire()
        held.set()
        may_end.wait()

    _thread.start_new_thread(hold, ())
    held.wait(60)
    renewed(locks, "a")
    may_end.set()
    free(locks, "a")
    assert lock.lost


def test_a_lease_whose_thread_is_gone_keeps_no_other_from_being_renewed():
    lock = locks.lock("a", timeout=30)
    book = renewer.ThreadBook(lock._server())
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


def test_renewal_goes_on_while_the_holder_is_busy():
    # A holder that computes without a pause leaves the renewal its share of the interpreter.
    with locks.lock("a", timeout=1) as lock:
        until = time.monotonic() + 1.2
        while time.monotonic() < until:
            sum(range(1000))
        assert not lock.lost
        assert lock.owned()


def test_an_extension_that_is_not_answered_counts_where_it_makes_the_lease_shorter():
    with locks.lock("a", timeout=30, auto_renewal=False) as lock:
        [lease] = lock._own().leases
        for replace, left in ((False, 30), (True, 2)):
            flow = protocol.extend(lease, 2, replace=replace)
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
            flow = protocol.extend(lease, seconds, replace=True)
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


EXTENSIONS = {
    "reacquire": lambda lock: lock.reacquire(),
    "extend, replace": lambda lock: lock.extend(1, replace_ttl=True),
}


def extends(command):
    """Whether the holder extends its lease. A renewal asks for exactly the lease's 1.2 seconds."""
    return runs(RENEW)(command) and not any(part.endswith(b" 1200") for part in command)


def sets_or_extends(kind):
    if kind == "reacquire":
        return lambda command: runs(RENEW)(command) and b"set" in command
    return extends


@pytest.mark.parametrize("kind", EXTENSIONS)
def test_a_lease_is_renewed_while_its_extension_is_under_way(proxied, kind):
    """The answer to the extension takes longer than the lease lasts."""
    own, proxy = proxied
    lost = []
    with own.lock("a", timeout=1.2, on_lost=lost.append) as lock:
        renewed(own, "a")  # the server knows the script
        late = proxy.delay_reply(sets_or_extends(kind), 1.7)
        assert EXTENSIONS[kind](lock)
        assert late.is_done()
        assert not lock.lost
    assert lost == []


def test_the_holder_takes_its_lease_to_end_before_the_server_does():
    """The server counts in whole milliseconds, of which one may be nearly over."""
    for _ in range(50):
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
        run(lease.server.client, protocol.renew(lease.keys, lease.token, 3600, "renew"))

        [(_, left)] = run(lease.server.client, protocol.renew_all([lease], 2))
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


def test_a_lock_that_is_not_renewed_needs_no_thread(own_locks, caplog):
    with no_new_threads(), own_locks.lock("a", timeout=30, auto_renewal=False):
        pass
    assert not caplog.records


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
        assert run(other, queries.get(Keys("redislock"), "a")).ttl > 25
        waiter.release()


def test_every_lock_object_that_holds_is_told_of_the_loss_once(moving_clock):
    told = []
    options = {"timeout": 30, "reentrant": True, "on_lost": told.append}
    outer = locks.lock("a", **options)
    inner = locks.lock("a", **options)
    many = locks.lock_many(["a", "b"], **options)
    for lock in (outer, inner, many, outer):
        assert lock.acquire()
    assert locks.force_release("a") == 1
    moving_clock.forward(15)
    assert sorted(map(repr, told)) == sorted(map(repr, (outer, inner, many)))
    for lock in (outer, many, inner, outer):
        assert lock.lost
        with pytest.raises(LockLost):
            lock.release()
    assert len(told) == 3


@pytest.fixture
def soon_idle(monkeypatch):
    monkeypatch.setattr(renewer, "IDLE", 0.05)


def ends(book):
    wait_until(lambda: book._thread is None)


async def aends(book):
    async def ended():
        return book._task is None

    await until(ended)


def test_a_renewer_without_leases_ends_and_the_next_lease_starts_another(own_locks, soon_idle):
    book = thread_book(own_locks._server(), "a")
    for _ in range(2):
        with own_locks.lock("a", timeout=0.9):
            assert book._thread
            renewed(own_locks, "a")
        ends(book)


def test_a_renewer_without_leases_ends_in_async_too(own_locks, soon_idle):
    async def use():
        book = loop_book(own_locks._server(), "a")
        for _ in range(2):
            async with own_locks.lock("a", timeout=0.9):
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
    monkeypatch.setattr(renewer, "IDLE", 0.3)
    book = thread_book(own_locks._server(), "a")
    book.wake()
    wait_until(lambda: math.isfinite(book._next))
    with own_locks.lock("a", timeout=1.2):  # due after the renewer looks again
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
    with own_locks.lock("a", timeout=0.9):
        book = thread_book(own_locks._server(), "a")
        for step in count(1):
            waking = interrupt_at(step, renewer.ThreadBook.wake.__code__)
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
        with own_locks.lock("b", timeout=0.9):
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


def test_a_renewer_that_ended_while_one_waited_starts_again(another, own_locks, soon_idle):
    def hold():
        with own_locks.lock("a", timeout=1.2):
            renewed(own_locks, "a")

    with another.lock("a"):
        waiter = start(hold)
        waiting(own_locks, "a", 1)
        with own_locks.lock("b", timeout=1.5):
            pass
        ends(thread_book(own_locks._server(), "a"))
    waiter.result(60)


def test_what_is_got_after_its_lease_was_ended_is_given_back():
    lock = locks.lock("a", timeout=60)
    [(book, name)] = lock._targets(thread_book)
    lease = lock._new_lease(book, name, None, lock._owner())
    lease.end()  # as an interrupt does that could not wait for the answer
    want = lock._want(lease.keys, lease.token)
    assert run(book.server.client, protocol.take(lease, want, None)) is False
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
