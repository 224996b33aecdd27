"""Quorums: a majority of independent servers, some or most of which are unreachable."""

import asyncio
import random

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import ConnectionError

from django_redislock import (
    LockError,
    LockLost,
    LockNotAcquired,
    LockNotOwnedError,
    clock,
    locks,
)
from django_redislock.engine import protocol, queries, runners
from django_redislock.engine.runners import _perform, run
from django_redislock.lock_types import acquisition
from django_redislock.lock_types import quorum as primitive
from django_redislock.signals import lock_refused
from tests.lock_fixtures import CORE
from tests.lock_tools import (
    acquisition_of,
    hold_of,
    lease_of,
    listening,
    start,
    until,
    waiting,
    within,
)
from tests.quorums import ALL, BOUND, OTHERWISE, THREE, alone, at, holders, quorum
from tests.servers import Node
from tests.tools import wait_until

pytestmark = pytest.mark.xdist_group("quorum")  # its servers start once

WITH_A_CLUSTER = ["default", "q1", "q2"]
"""The first alias uses the Cluster client below."""


def use_once(seconds=60, using=ALL):
    lock = quorum(using=using)
    if not lock.acquire(blocking_timeout=seconds):
        return False
    lock.release()
    return True


def of_a_cluster_that_is_away():
    """For REDISLOCK_CLIENT. Such a client connects when it is made."""
    return redis.RedisCluster(host="127.0.0.1", port=1)


# Without contention and faults


def test_it_is_held_at_every_server(five):
    lock = locks.using("default").quorum("a", iter(ALL), timeout=30, metadata={"job": 7})
    assert not lock.locked()
    assert lock.validity == 0
    assert lock.acquire(token="mine") is True
    assert holders(five) == ALL
    for info in map(at, ALL):
        assert (info.token, info.fence_token) == (lock.token, lock.fence_token)
        assert (info.kind, info.metadata) == ("quorum", {"job": 7})
    assert lock.owned()
    assert lock.locked()
    lock.assert_held()
    assert lock.extend(100) is True
    assert all(at(alias).ttl > 100 for alias in ALL)
    assert lock.validity > 100
    assert lock.extend(20, replace_ttl=True) is True
    assert lock.validity <= 20
    assert lock.reacquire() is True
    assert all(20 < at(alias).ttl <= 30 for alias in ALL)
    lock.release()
    assert (lock.token, lock.fence_token, lock.validity) == (None, None, 0)
    assert not lock.locked()
    assert holders(five) == []
    for use in (lock.release, lock.assert_held):
        with pytest.raises(LockNotOwnedError):
            use()


# The validity


def test_validity_is_shorter_than_the_lease_and_follows_renewals(five, moving_clock):
    with quorum("b", at_least_for=60, auto_renewal=False) as lock:
        assert 50 < lock.validity <= 60 * 0.99 - 0.002, "also with a cooldown"
    assert not quorum("b", blocking=False).acquire()
    assert [locks.using(alias).force_release("b") for alias in ALL] == [1] * 5
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
    lease = lease_of(lock)
    fence = lease.fence_token
    assert run(lease.server.client, protocol.raise_fence(lease, fence + 1)) is False
    assert lease.fence_token == fence
    moving_clock.forward(15)
    rest = at("q2").expires_at, at("q4").expires_at
    for _ in range(2):
        moving_clock.forward(15)
    assert (at("q2").expires_at, at("q4").expires_at) == rest, "the rest is not renewed"
    assert lock.lost
    assert lock.validity == 0
    assert reported == [lock]
    with pytest.raises(LockLost):
        lock.release()


# Servers that are killed or hang


def test_it_works_without_two_of_five_servers(five, moving_clock, caplog):
    five.kill(0, random.choice([1, 2, 3, 4]))
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
    with within(BOUND), pytest.raises(LockError, match="held by"), quorum(blocking=False):
        pass
    with within(BOUND):
        lock.release()
    assert holders(five) == []
    with within(BOUND):
        assert use_once()
    assert "through an outage" not in caplog.text
    five.start(*five.away)
    with quorum():
        assert holders(five) == ALL


def test_wrong_settings_do_not_count_as_an_unreachable_server(five, settings):
    settings.REDISLOCK_CLIENT = f"{__name__}.of_a_cluster_that_is_away"
    settings.REDISLOCK_PREFIX = "of the cluster"  # makes a new server object
    with pytest.raises(ImproperlyConfigured, match="'nowhere'"):
        quorum(using=["q0", "nowhere", "q2"]).acquire()
    settings.REDISLOCK_ASYNC_CLIENT = None
    with pytest.raises(ImproperlyConfigured, match="REDISLOCK_ASYNC_CLIENT is not set"):
        asyncio.run(quorum(using=WITH_A_CLUSTER).aacquire())
    settings.REDISLOCK_CLIENT = f"{__name__}.quorum"  # returns another type of object
    settings.REDISLOCK_PREFIX = "of no client"
    for ask in (quorum(using=WITH_A_CLUSTER).acquire, quorum(using=WITH_A_CLUSTER[::-1]).locked):
        with pytest.raises(ImproperlyConfigured, match="REDISLOCK_CLIENT must return a"):
            ask()


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


def test_a_caller_with_a_limit_waits_for_a_majority_to_come_back(five, caplog, monkeypatch):
    failures = []

    def pause(number):
        failures.append(number)
        return 0.05

    async def hold():
        async with quorum(blocking_timeout=60):
            return True

    monkeypatch.setattr(acquisition, "outage_pause", pause)
    five.kill(0, 2, 3)
    waiter = start(asyncio.run, hold())
    wait_until(lambda: len(failures) > 1)
    five.start(2)
    assert waiter.result(60)
    assert caplog.text.count("through an outage: name='a'") == 1


def test_unresponsive_servers_cause_no_long_delay(five, hanging):
    with hanging(1, 2, 4), within(BOUND), pytest.raises(ConnectionError, match="3 failed"):
        quorum().acquire()  # opens connections
    five.none_left(timeout=15)
    lock = quorum()
    assert use_once()
    with hanging(1, 2, 4), within(BOUND), pytest.raises(ConnectionError, match="3 failed"):
        lock.acquire()
    five.none_left(timeout=15)
    with hanging(0, 3):
        for ask in (lock.acquire, lock.locked, lambda: lock.extend(10), lock.owned):
            with within(BOUND):
                assert ask()
        with within(BOUND):
            lock.release()
        with within(BOUND):
            assert not lock.owned()
    five.none_left(timeout=15)


# Servers that come back


def test_a_server_that_was_away_at_the_acquisition_is_taken_in(five, moving_clock):
    five.kill(1)
    with quorum(using=THREE, auto_renewal=False):
        five.start(1)
        moving_clock.forward(15)
        assert holders(five) == ["q0", "q2"]
    five.kill(1)
    lock = quorum(using=THREE, reentrant=True, metadata={"job": 7})
    assert lock.acquire(token="mine")
    five.start(1)
    with alone("q1") as other:
        moving_clock.forward(15)
        assert other.owned()
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


def test_a_server_that_is_taken_in_after_the_release_is_released(five, moving_clock):
    """The request of the renewal was faster than the release, and its reply slower."""
    lock = quorum(using=THREE)
    assert lock.acquire()
    lease = hold_of(lock).parts[0].lease
    lock.release()
    results = run(lease.server.client, protocol.retake_all([lease], 10))
    assert holders(five) == ["q0"]
    lease.renewer._apply_retakes(clock.now(), results)
    moving_clock.forward(0)
    assert holders(five) == []


def test_a_thread_that_an_interrupt_kept_from_running_never_does(five):
    server = locks.using("q0")._server()
    thread = runners._FlowThread(server, queries.get(server.keys, "a", 10))
    thread.finish()
    thread.run()
    assert thread.outcome is None


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


# Fencing tokens


def test_tokens_grow_across_different_majorities(five):
    """A token that one majority has recorded is less than the next one of any other."""
    seen = [0]
    for number in range(30):
        majority = random.sample(ALL, 3)
        # The last token of one of its servers came from a clock that was ahead.
        chosen = ALL.index(random.choice(majority))
        with alone(ALL[chosen]) as lock:
            ahead = lock.fence_token + number * 30 * 86400 * 10**6
            client = five.clients[chosen]
            [index] = [key for key in client.keys("*:index") if client.zscore(key, "a")]
            client.zadd(index, {"": ahead})
        with quorum(using=majority) as lock:
            seen.append(lock.fence_token)
    assert sorted(set(seen)) == seen


def test_a_server_that_is_taken_in_gets_the_token_of_the_hold(five, moving_clock):
    with alone("q0") as lock:
        ahead = lock.fence_token + 30 * 86400 * 10**6
        [index] = five.clients[0].keys("*:index")
        five.clients[0].zadd(index, {"": ahead})
    five.kill(1)
    with quorum(using=THREE) as lock:
        five.start(1)
        moving_clock.forward(15)
        assert at("q1").fence_token == lock.fence_token > ahead


def test_a_server_that_comes_back_without_its_replica_is_not_taken_in(five, moving_clock):
    with (
        Node(replicaof=f"127.0.0.1 {five.servers[0].port}") as first,
        Node(replicaof=f"127.0.0.1 {five.servers[2].port}") as third,
    ):
        for each in (first, third):
            wait_until(lambda each=each: is_linked(each))
        five.kill(1)
        with quorum(using=THREE, min_replicas=1) as lock:
            five.start(1)
            moving_clock.forward(15)
            assert [part.lost for part in hold_of(lock).parts] == [False, True, False]


def is_linked(replica):
    return replica.client().info("replication")["master_link_status"] == "up"


# A holder that acquires it again


def test_a_holder_is_refused_and_does_not_wait_for_itself(five):
    with quorum(using=THREE), pytest.raises(LockError, match="already held by this thread"):
        quorum(using=THREE).acquire()


def test_a_hold_of_one_server_is_no_hold_of_a_majority(five):
    with alone("q4", reentrant=True) as first, quorum(reentrant=True) as lock:
        assert first.token != lock.token
        assert holders(five) == ALL
        lock.assert_held()
    five.none_left()


def test_the_error_names_nobody_if_the_lock_became_free(five):
    other = quorum()
    assert start(other.acquire).result(60)

    def release(**about):
        assert [locks.using(alias).force_release("a") for alias in ALL] == [1] * 5

    with listening(lock_refused, release), pytest.raises(LockNotAcquired) as caught:
        quorum(blocking=False).__enter__()
    assert caught.value.holder is None


# Waiters


def test_waiters_queue_at_one_server_and_acquire_in_order_of_arrival(five):
    entered = []

    def hold(number):
        with quorum():
            entered.append(number)

    with quorum():
        waiters = []
        for number in range(4):
            waiters.append(start(hold, number))
            waiting(locks.using("q0"), "a", number + 1)
        assert [at(alias).waiters for alias in ALL[1:]] == [0] * 4
    for each in waiters:
        each.result(60)
    assert entered == [0, 1, 2, 3]


@pytest.mark.parametrize("taken", [("q2", "q3", "q4"), ("q0", "q2", "q4")])
def test_a_minority_is_released_after_the_wait(five, taken):
    others = [alone(alias) for alias in taken]
    assert all(other.acquire() for other in others)
    for seconds in (0, 0.5):
        with within(seconds + BOUND):
            assert quorum().acquire(blocking_timeout=seconds) is False
        assert [bool(names) for names in five.left()] == [alias in taken for alias in ALL]
    waiter = start(use_once, 20)
    for other in others:
        other.release()
    assert waiter.result(60)


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


async def test_cancellation_at_any_moment_leaves_nothing(five):
    async def hold(name):
        async with quorum(name, timeout=60):
            await asyncio.sleep(0)

    async def cancelled(name):
        task = asyncio.create_task(hold(name))
        await asyncio.sleep(random.uniform(0, 0.006))
        task.cancel()
        await asyncio.wait([task])

    await hold("warm")
    for number in range(50):
        await asyncio.gather(*(cancelled(f"n{(4 * number + each) % 20}") for each in range(4)))
    await until(five.has_none_left)


def at_step(flow, number):
    op = next(flow)
    for _ in range(number - 1):
        op = flow.send(_perform(None, op))
    return flow, op


@pytest.mark.parametrize("step", range(1, 5))  # queues, asks others, notes token, gives back
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


def test_the_error_reports_a_majority_that_cannot_record_the_token(five, settings):
    rules = ["on", "nopass", "~*", "+@all", "-persist"]
    for alias, server, client in zip(ALL, five.servers, five.clients, strict=True):
        client.execute_command("ACL", "SETUSER", "taker", *rules)
        settings.CACHES[alias]["LOCATION"] = f"redis://taker:any@127.0.0.1:{server.port}/0"
    with within(BOUND), pytest.raises(ConnectionError, match="needs 3 of 5 servers, but 5 failed"):
        quorum(blocking_timeout=BOUND).acquire()
    five.none_left()


# Refused arguments and locks


@pytest.mark.parametrize(("count", "needed"), [(1, 1), (2, 2), (4, 3)])
def test_an_even_number_of_servers_or_a_single_one_warns_and_needs_a_majority(five, count, needed):
    with pytest.warns(RuntimeWarning, match="using"):
        lock = quorum(using=ALL[:count])
    five.kill(*range(count - needed))
    with lock:
        pass
    five.kill(count - 1)
    with pytest.raises(ConnectionError, match=f"needs {needed} of {count}"):
        lock.acquire()


def test_two_aliases_on_one_server_and_a_lock_of_another_kind_are_refused(five, settings):
    for url in (five.servers[0].url, five.servers[0].url[:-1] + "1"):
        twin = {"BACKEND": CORE, "LOCATION": url.replace("127.0.0.1", "localhost")}
        settings.CACHES = {**settings.CACHES, "twin": twin}
        with pytest.raises(ImproperlyConfigured, match=r"2 cache aliases on .* 127\.0\.0\.1"):
            quorum(using=["q0", "q1", "twin"]).acquire()
    with locks.using("q3").lock("a"), within(BOUND), pytest.raises(LockError, match="mutex"):
        quorum().acquire(blocking_timeout=5)
    with quorum(), pytest.raises(LockError, match="quorum"):
        locks.using("q1").lock("a").acquire(blocking=False)
