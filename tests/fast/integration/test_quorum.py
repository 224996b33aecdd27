"""Quorums: a majority of independent servers, some or most of which are unreachable."""

import asyncio
import contextlib
import random
import threading
import time

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from redis.exceptions import ConnectionError

from django_redislock import LockError, LockLost, LockNotOwnedError, clock, locks
from django_redislock.engine import protocol
from django_redislock.engine.registry import add
from django_redislock.engine.runners import _perform, run
from django_redislock.lock_types import quorum as primitive
from tests.lock_fixtures import CORE
from tests.lock_tools import (
    acquisition_of,
    commands,
    held_by_another_task,
    hold_of,
    interrupt_where,
    lease_of,
    start,
    until,
    waiting,
    within,
)
from tests.quorums import (
    ALL,
    BOUND,
    OTHERWISE,
    THREE,
    alone,
    at,
    holders,
    quorum,
)
from tests.tools import wait_until

pytestmark = pytest.mark.xdist_group("quorum")  # its servers start once

WITH_A_CLUSTER = ["default", "q1", "q2"]
"""The first alias uses the Cluster client below."""


def of_a_cluster_that_is_away():
    """For REDISLOCK_CLIENT. Such a client connects when it is made."""
    return redis.RedisCluster(host="127.0.0.1", port=1)


def async_of_a_cluster_that_is_away():
    return redis.asyncio.RedisCluster(host="127.0.0.1", port=1)


def test_the_error_names_the_holder_if_a_server_is_away(five):
    with quorum():
        five.kill(0)
        with pytest.raises(LockError, match="held by") as caught, quorum(blocking_timeout=0.1):
            pass
        assert caught.value.holder == at(ALL[1]).holder


# Without contention and faults


def test_it_is_held_at_every_server(five):
    lock = quorum(metadata={"job": 7})
    assert not lock.locked()
    assert lock.validity == 0
    assert lock.acquire(token="mine") is True
    assert holders(five) == ALL
    infos = [at(alias) for alias in ALL]
    assert {lock.token, *(info.token for info in infos)} == {"mine"}
    assert {info.fence_token for info in infos} == {lock.fence_token}
    assert {info.kind for info in infos} == {"quorum"}
    assert [info.metadata for info in infos] == [{"job": 7}] * 5
    assert lock.owned()
    assert lock.locked()
    assert not lock.lost
    lock.assert_held()
    assert lock.extend(100) is True
    assert all(at(alias).ttl > 100 for alias in ALL)
    assert lock.validity > 100
    assert lock.extend(20, replace_ttl=True) is True
    assert lock.validity <= 20
    assert lock.reacquire() is True
    assert all(20 < at(alias).ttl <= 30 for alias in ALL)
    lock.release()
    assert lock.token is lock.fence_token is None
    assert lock.validity == 0
    assert not lock.owned()
    assert not lock.locked()
    assert holders(five) == []
    with pytest.raises(LockNotOwnedError):
        lock.release()
    with pytest.raises(LockNotOwnedError):
        lock.assert_held()


def test_as_a_decorator(five):
    @locks.quorum("site:{site}", using=ALL, timeout=30)
    def work(site):
        return holders(five, f"site:{site}")

    assert work(1) == work(site=2) == ALL


def test_using_may_be_any_iterable_and_replaces_the_managers_alias(five):
    five.kill(0)
    with locks.using("q0").quorum("a", using=(alias for alias in ALL[1:4])) as lock:
        assert lock.owned()
        assert holders(five) == ["q1", "q2", "q3"]


def test_it_stays_held_during_its_cooldown(five):
    began = time.monotonic()
    with quorum(at_least_for=0.5, timeout=2.5):
        pass
    assert not quorum(blocking=False).acquire()
    with quorum(blocking_timeout=10):
        assert time.monotonic() - began > 0.45


# The validity


def test_validity_is_shorter_than_the_lease_and_follows_renewals(five, moving_clock):
    with quorum(timeout=30) as lock:
        first = lock.validity
        assert 25 < first <= 30 * 0.99 - 0.002
        wait_until(lambda: lock.validity < first)
        for _ in range(3):
            moving_clock.forward(15)
            assert 25 < lock.validity <= 30 * 0.99 - 0.002
        lock.assert_held()
        assert lock.owned()
        lock.extend(100, replace_ttl=True)
        assert 90 < lock.validity <= 100 * 0.99 - 0.002


def test_clock_drift_is_subtracted_from_at_least_for_too(five):
    with quorum(timeout=0.1, at_least_for=0.5, auto_renewal=False) as lock:
        assert lock.validity <= 0.5 * 0.99 - 0.002


# Losses


def test_a_loss_is_reported_once_and_only_without_a_majority(five, moving_clock):
    reported = []
    lock = quorum(timeout=30, on_lost=reported.append)
    assert lock.acquire()
    for alias in ("q1", "q3"):
        assert locks.using(alias).force_release("a") == 1
    moving_clock.forward(15)
    assert reported == []
    lock.assert_held()
    assert locks.using("q0").force_release("a") == 1
    for _ in range(3):
        moving_clock.forward(15)
    assert lock.lost
    assert lock.validity == 0
    assert reported == [lock]
    with pytest.raises(LockLost):
        lock.release()


def test_a_holder_that_lost_the_majority_does_not_renew_the_rest(five):
    lock = quorum(timeout=2.5)
    assert lock.acquire()
    for alias in ("q1", "q2", "q3"):
        assert locks.using(alias).force_release("a") == 1
    wait_until(lambda: lock.lost)
    assert start(use_once, 10).result(60)
    with pytest.raises(LockLost):
        lock.release()


def use_once(seconds, using=ALL):
    lock = quorum(using=using)
    if not lock.acquire(blocking_timeout=seconds):
        return False
    lock.release()
    return True


# Servers that are killed


def test_it_works_without_two_of_five_servers(five, moving_clock):
    five.kill(*random.sample(range(5), 2))
    lock = quorum()
    with within(BOUND):
        assert lock.acquire()
    assert len(holders(five)) == 3
    for _ in range(2):
        moving_clock.forward(16)
    lock.assert_held()
    assert lock.owned()
    assert lock.locked()
    assert lock.extend(1)
    with within(BOUND):
        assert not quorum(blocking=False).acquire()
    with within(BOUND):
        lock.release()
    assert holders(five) == []
    five.start(*five.away)
    with quorum():
        assert holders(five) == ALL


@pytest.fixture
def cluster_away(five, settings):
    settings.REDISLOCK_CLIENT = f"{__name__}.of_a_cluster_that_is_away"
    settings.REDISLOCK_ASYNC_CLIENT = f"{__name__}.async_of_a_cluster_that_is_away"
    settings.REDISLOCK_PREFIX = "of the cluster"  # makes a new server object


def test_it_works_without_an_unreachable_cluster_as_first_server(cluster_away):
    async def use():
        assert not await lock.alocked()
        async with lock:
            assert await lock.aowned()
            assert await lock.alocked()
            assert await lock.aextend(1) is True
            assert not await quorum(using=WITH_A_CLUSTER, blocking=False).aacquire()

    lock = quorum(using=WITH_A_CLUSTER)
    asyncio.run(use())
    assert not lock.locked()
    with lock:
        assert lock.owned()
        assert lock.locked()
        assert lock.extend(1) is True
        assert [at(alias).token for alias in WITH_A_CLUSTER[1:]] == [lock.token] * 2
        assert not quorum(using=WITH_A_CLUSTER, blocking=False).acquire()


@pytest.mark.parametrize("using", [WITH_A_CLUSTER, WITH_A_CLUSTER[::-1]])
def test_wrong_settings_do_not_count_as_an_unreachable_server(cluster_away, settings, using):
    settings.REDISLOCK_ASYNC_CLIENT = None
    lock = quorum(using=using)
    for ask in (lock.aacquire, lock.alocked):
        with pytest.raises(ImproperlyConfigured, match="REDISLOCK_ASYNC_CLIENT is not set"):
            asyncio.run(ask())
    settings.REDISLOCK_CLIENT = f"{__name__}.quorum"  # returns another type of object
    settings.REDISLOCK_PREFIX = "of no client"
    for ask in (lock.acquire, lock.locked):
        with pytest.raises(ImproperlyConfigured, match="REDISLOCK_CLIENT must return a"):
            ask()


def test_without_a_majority_the_error_counts_an_unreachable_cluster(five, cluster_away):
    five.kill(1)
    with pytest.raises(ConnectionError, match="needs 2 of 3 servers, but 2 failed"):
        quorum(using=WITH_A_CLUSTER).acquire()


def test_without_three_of_five_servers_it_is_refused_at_once(five):
    five.kill(0, 2, 3)
    for wait in ({"blocking": False}, {"blocking_timeout": 0.5}, {}):
        with (
            within(BOUND),
            pytest.raises(ConnectionError, match=r"'a' needs 3 of 5 servers, but 3"),
        ):
            quorum(**wait).acquire()
        with within(BOUND), pytest.raises(ConnectionError):
            asyncio.run(quorum(**wait).aacquire())
    with within(BOUND), pytest.raises(ConnectionError):
        quorum().locked()
    five.none_left()


def test_a_waiter_continues_on_the_next_server_if_its_server_dies(five):
    entered = []

    def hold():
        with quorum() as lock:
            entered.append(lock.fence_token)

    with quorum(timeout=2.5) as lock:
        waiter = start(hold)
        waiting(locks.using("q0"), "a", 1)
        five.kill(0)
        waiting(locks.using("q1"), "a", 1)
        assert entered == []
        fence = lock.fence_token
    waiter.result(60)
    assert entered[0] > fence


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_caller_with_a_limit_waits_for_a_majority_to_come_back(five, caplog, is_async):
    def hold():
        lock = quorum(blocking_timeout=60)
        return asyncio.run(lock.aacquire()) if is_async else lock.acquire()

    five.kill(0, 2, 3)
    waiter = start(hold)
    wait_until(lambda: "through an outage: name='a'" in caplog.text)
    five.start(2)
    assert waiter.result(60)
    assert caplog.text.count("through an outage") == 1
    for alias in ALL[1:3]:
        locks.using(alias).force_release("a")
    locks.using(ALL[4]).force_release("a")


def test_two_servers_of_five_that_are_away_delay_no_caller_with_a_limit(five, caplog):
    five.kill(0, 3)
    for _ in range(3):
        with within(BOUND), quorum(blocking_timeout=60):
            pass
    assert "through an outage" not in caplog.text


# Unresponsive servers


def test_two_unresponsive_servers_of_five_cause_no_long_delay(five, hanging):
    lock = quorum()
    with lock:
        pass  # opens the connections
    with hanging(0, 3):
        for ask in (lock.acquire, lock.locked, lambda: lock.extend(10), lock.owned):
            with within(BOUND):
                assert ask()
        with within(BOUND):
            lock.release()
        with within(BOUND):
            assert not lock.owned()
    five.none_left(timeout=15)


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "not connected"])
def test_three_unresponsive_servers_are_a_refusal(five, hanging, connected):
    if connected:
        with quorum():
            pass
    with hanging(1, 2, 4), within(BOUND), pytest.raises(ConnectionError, match="3 failed"):
        quorum().acquire()
    five.none_left(timeout=15)
    with quorum():
        assert holders(five) == ALL


# Servers that come back


def test_a_server_that_was_away_at_the_acquisition_is_taken_in(five, moving_clock):
    five.kill(1)
    lock = quorum(using=THREE, reentrant=True, metadata={"job": 7})
    assert lock.acquire(token="mine")
    five.start(1)
    moving_clock.forward(15)
    assert holders(five) == THREE
    assert {(at(alias).token, at(alias).kind) for alias in THREE} == {("mine", "quorum")}
    assert at("q1").metadata == {"job": 7}
    assert at("q1").fence_token >= lock.fence_token
    five.kill(0)
    for _ in range(2):
        moving_clock.forward(16)
    with lock:
        lock.assert_held()
        assert lock.owned()
        lock.extend(100)
    lock.release()
    assert holders(five) == []


def test_a_server_that_another_caller_holds_is_not_taken(five, moving_clock):
    other = alone("q1")
    assert other.acquire()
    with quorum(using=THREE):
        moving_clock.forward(15)
        assert other.owned()
        other.release()
        moving_clock.forward(15)
        assert holders(five) == THREE
    assert holders(five) == []


def test_a_lock_that_was_lost_takes_no_server_back(five, moving_clock):
    lock = quorum(using=THREE, timeout=30)
    assert lock.acquire()
    five.kill(0, 1)
    moving_clock.forward(31)
    assert lock.lost
    five.start(0, 1)
    for _ in range(3):
        moving_clock.forward(15)
    assert lock.lost
    assert not lock.owned()
    with pytest.raises(LockLost):
        lock.release()
    five.none_left()


def test_a_loss_that_the_holder_has_seen_is_final(five):
    """The reply of a server that is taken back may come right after that."""
    lock = quorum(using=THREE)
    assert lock.acquire()
    first, second, _ = [part.lease for part in hold_of(lock).parts]
    first.mark_lost()
    second.mark_lost()
    assert lock.lost
    first.begin_again(first.fence_token, clock.now() + 30)
    assert not first.lost
    assert lock.lost
    assert lock.validity == 0
    with pytest.raises(LockLost):
        lock.release()
    five.none_left()


def test_without_renewal_no_server_is_taken_back(five, moving_clock):
    five.kill(1)
    with quorum(using=THREE, auto_renewal=False):
        five.start(1)
        moving_clock.forward(15)
        assert holders(five) == ["q0", "q2"]


def test_a_forced_release_of_all_servers_within_a_renewal_ends_the_hold(five, moving_clock):
    lock = quorum(using=THREE)
    assert lock.acquire()
    assert locks.using("q0").force_release("a") == 1
    moving_clock.forward(15)
    for alias in THREE[1:]:
        assert locks.using(alias).force_release("a") == 1
    moving_clock.forward(15)
    moving_clock.forward(15)
    assert lock.lost
    with pytest.raises(LockLost):
        lock.release()
    five.none_left()


# Fencing tokens


def test_tokens_grow_across_different_majorities(five):
    # A token that was recorded by one majority must be less than the next token of any other.
    random_majorities = [random.sample(ALL, 3) for _ in range(30)]
    seen = [0]
    for majority in random_majorities:
        raise_counter(five, ALL.index(random.choice(majority)), days=len(seen) * 30)
        with quorum(using=majority) as lock:
            seen.append(lock.fence_token)
    assert sorted(set(seen)) == seen


def raise_counter(five, number, *, days, name="a"):
    """Let the last token of a server come from a clock that was ahead."""
    with alone(ALL[number], name) as lock:
        ahead = lock.fence_token + days * 86400 * 10**6
        client = five.clients[number]
        [index] = [key for key in client.keys("*:index") if client.zscore(key, name)]
        client.zadd(index, {"": ahead})
    return ahead


# Waiters


def test_tasks_and_threads_acquire_in_order_of_arrival(five):
    entered = []

    async def hold(number):
        async with quorum(using=random.sample(ALL, 5)):
            entered.append(number)

    async def use():
        async with quorum():
            for number in range(0, 6, 2):
                tasks.append(asyncio.create_task(hold(number)))
                await until(lambda n=number: so_many(n + 1))
                tasks.append(asyncio.wrap_future(start(asyncio.run, hold(number + 1))))
                await until(lambda n=number: so_many(n + 2))
        await asyncio.gather(*tasks)

    async def so_many(count):
        return (await locks.using("q0").aget("a")).waiters == count

    tasks = []
    asyncio.run(use())
    assert entered == list(range(6))


def test_a_waiter_blocks_only_on_the_first_server(five):
    with quorum(), contextlib.ExitStack() as stack:
        called = [stack.enter_context(commands(client)) for client in five.clients]
        waiter = start(lambda: quorum().acquire(blocking_timeout=0.8))
        waiting(locks.using("q0"), "a", 1)
        assert [at(alias).waiters for alias in ALL[1:]] == [0] * 4
        assert waiter.result(60) is False
    pops = [each["blpop"] for each in called]
    assert 1 < pops[0] < 6
    assert pops[1:] == [0] * 4


@pytest.mark.parametrize("taken", [("q2", "q3", "q4"), ("q0", "q2", "q4")])
def test_a_minority_is_released_after_the_wait(five, taken):
    others = [alone(alias) for alias in taken]
    assert all(other.acquire() for other in others)
    for wait in ({"blocking": False}, {"blocking_timeout": 0}, {"blocking_timeout": 0.5}):
        with within(0.5 + BOUND):
            assert quorum().acquire(**wait) is False
        five_left = [bool(names) for names in five.left()]
        assert five_left == [alias in taken for alias in ALL]
    waiter = start(use_once, 20)
    for other in others:
        other.release()
    assert waiter.result(60)


def test_another_holder_with_a_minority_does_not_block(five):
    others = [alone("q3"), alone("q4")]
    assert all(other.acquire() for other in others)
    with within(BOUND):
        assert quorum().acquire(blocking_timeout=10) is True
    assert holders(five) == ALL
    for other in others:
        other.release()
    for alias in ALL[:3]:
        assert locks.using(alias).force_release("a") == 1


def test_rivals_with_a_minority_each_release_it_and_then_acquire(five):
    # One rival has q0 and q1, the other q3 and q4, and q2 is unreachable.
    mine, others = [alone("q0"), alone("q1")], [alone("q4"), alone("q3")]
    five.kill(2)
    assert all(lock.acquire() for lock in mine + others)
    rivals = [start(use_once, 30, using) for using in (ALL, OTHERWISE)]
    for lock in mine + others:
        lock.release()
    assert [rival.result(40) for rival in rivals] == [True, True]


# Cleanup after failures


def test_cancellation_at_any_moment_leaves_nothing(five):
    async def hold(name):
        async with quorum(name, timeout=60):
            await asyncio.sleep(0)

    async def cancelled(number):
        task = asyncio.create_task(hold(f"n{number % 20}"))
        await asyncio.sleep(random.uniform(0, 0.006))
        for _ in range(random.randrange(4)):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def use():
        for _ in range(3):
            await hold("warm")
        for start_at in range(0, 200, 4):
            await asyncio.gather(*map(cancelled, range(start_at, start_at + 4)))
        await until(five.has_none_left)

    asyncio.run(use())


def test_a_sync_quorum_that_would_block_the_event_loop_raises(five):
    async def use():
        with quorum():
            pass
        async with held_by_another_task(quorum()):
            with pytest.raises(SynchronousOnlyOperation, match="'a'"):
                quorum().acquire()
            assert not [alias for alias in ALL if locks.using(alias).queue("a")]
            assert quorum().acquire(blocking=False) is False

    asyncio.run(use())


@pytest.mark.parametrize("place", ["add", "CompositeHold.begin"])
def test_an_interrupt_after_a_majority_was_acquired_releases_it(five, place):
    lock = quorum(timeout=600)
    with interrupt_where(place, add):
        lock.__enter__()
    five.none_left(timeout=60)


def at_step(flow, number):
    """Run a flow up to its operation `number`, counted from 1."""
    op = next(flow)
    for _ in range(number - 1):
        op = flow.send(_perform(None, op))
    return flow, op


ACQUIRING = ["queues at the first", "asks the others", "notes the token", "gives back"]


@pytest.mark.parametrize("step", range(1, 5), ids=ACQUIRING)
@pytest.mark.parametrize("end", ["interrupted", "interrupted twice", "closed"])
def test_an_acquisition_that_ends_at_any_step_leaves_nothing(five, step, end):
    lock = quorum(timeout=0.4 if end == "closed" else 60)
    acquisition = acquisition_of(lock)
    flow, op = at_step(acquisition.flow(), step)
    if end == "closed":
        flow.close()
    else:
        op = flow.throw(KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            flow.throw(KeyboardInterrupt) if "twice" in end else flow.send(_perform(None, op))
    del flow
    five.none_left(timeout=4)
    assert lock.token is None


def test_an_interrupted_release_is_completed(five, monkeypatch):
    def interrupt(client, flow):
        raise KeyboardInterrupt

    lock = quorum(timeout=60, reentrant=True)
    assert lock.acquire()
    assert lock.acquire()
    monkeypatch.setattr(primitive, "run", interrupt)
    for left in (ALL, []):
        with pytest.raises(KeyboardInterrupt):
            lock.release()
        wait_until(lambda left=left: holders(five) == left)
    five.none_left()


def test_a_minority_that_records_the_token_is_not_enough(five, monkeypatch):
    def refuse(lease, fence_token):
        if lease.server.alias in ALL[:3]:
            return False
        return (yield from raise_fence(lease, fence_token))

    raise_fence = protocol.raise_fence
    monkeypatch.setattr(protocol, "raise_fence", refuse)
    assert not quorum(blocking=False).acquire()
    five.none_left()


@pytest.mark.parametrize("blocking", [False, True])
def test_the_error_reports_a_majority_that_cannot_record_the_token(five, settings, blocking):
    rules = ["on", "nopass", "~*", "+@all", "-persist"]
    for alias, server, client in zip(ALL, five.servers, five.clients, strict=True):
        client.execute_command("ACL", "SETUSER", "taker", *rules)
        settings.CACHES[alias]["LOCATION"] = f"redis://taker:any@127.0.0.1:{server.port}/0"
    lock = quorum(blocking=blocking, blocking_timeout=BOUND if blocking else None)
    with within(BOUND), pytest.raises(ConnectionError, match="needs 3 of 5 servers, but 5 failed"):
        lock.acquire()
    five.none_left()


def test_a_lost_lease_records_no_token(five):
    with quorum() as lock:
        lease = lease_of(lock)
        before = lease.fence_token
        assert locks.using("q0").force_release("a") == 1
        assert run(lease.server.client, protocol.raise_fence(lease, before + 1)) is False
        assert lease.fence_token == before


# Refused arguments and locks


@pytest.mark.parametrize(
    ("using", "error"),
    [
        ("q0", TypeError),
        (b"q0", TypeError),
        (None, TypeError),
        (3, TypeError),
        ([], ValueError),
        (["q0", 1, "q2"], TypeError),
        (["q0", None, "q2"], TypeError),
        (["q0", "q1", "q0"], ValueError),
    ],
)
def test_invalid_aliases_are_refused(five, using, error):
    with pytest.raises(error, match="using"):
        locks.quorum("a", using=using)


@pytest.mark.parametrize("using", [["q0"], ["q0", "q1"], ALL[:4]])
def test_an_even_number_of_servers_or_a_single_one_warns(five, using):
    with pytest.warns(RuntimeWarning, match="using"):
        lock = locks.quorum("a", using=using)
    with lock:
        assert holders(five) == using


@pytest.mark.parametrize("needs", [(2, 2), (4, 3)])
def test_an_even_number_needs_more_than_half(five, needs):
    count, needed = needs
    with pytest.warns(RuntimeWarning):
        lock = quorum(using=ALL[:count])
    five.kill(*range(count - needed))
    with lock:
        pass
    five.kill(count - 1)
    with pytest.raises(ConnectionError, match=f"needs {needed} of {count}"):
        lock.acquire()


def test_an_unknown_alias_is_named(five):
    with pytest.raises(ImproperlyConfigured, match="'nowhere'"):
        quorum(using=["q0", "nowhere", "q2"]).acquire()
    with pytest.raises(ImproperlyConfigured, match="'nowhere'"):
        asyncio.run(quorum(using=["nowhere", "q1", "q2"]).aacquire())


def test_two_aliases_on_one_server_are_refused(five, settings):
    for url in (five.servers[0].url, five.servers[0].url[:-1] + "1"):
        twin = {"BACKEND": CORE, "LOCATION": url.replace("127.0.0.1", "localhost")}
        settings.CACHES = {**settings.CACHES, "twin": twin}
        with pytest.raises(ImproperlyConfigured, match=r"2 cache aliases on .* 127\.0\.0\.1"):
            quorum(using=["q0", "q1", "twin"]).acquire()


@pytest.mark.parametrize("aliases", [ALL[:3], ["q3"]])
def test_a_lock_of_another_kind_is_refused(five, aliases):
    mutexes = [locks.using(alias).lock("a", timeout=30) for alias in aliases]
    assert all(mutex.acquire() for mutex in mutexes)
    with within(BOUND), pytest.raises(LockError, match="mutex"):
        quorum().acquire(blocking_timeout=5)
    assert holders(five) == aliases
    for mutex in mutexes:
        mutex.release()
    with quorum(), pytest.raises(LockError, match="quorum"):
        locks.using("q1").lock("a").acquire(blocking=False)


def test_many_holds_leave_no_thread_and_no_connection(five):
    lock = quorum()
    with lock:
        pass
    threads, clients = threading.active_count(), counted(five)
    for _ in range(60):
        with lock:
            pass
    assert threading.active_count() <= threads + 5
    assert all(now <= before + 3 for before, now in zip(clients, counted(five), strict=True))


def counted(five):
    return [len(client.client_list()) for client in five.clients]
