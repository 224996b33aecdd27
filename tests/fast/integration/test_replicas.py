"""`min_replicas`: a lock is acquired when the given number of replicas have it."""

import asyncio
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError, ReadOnlyError

from django_redislock import LockLost
from django_redislock.engine import protocol, runners
from tests.lock_tools import calls, start, waiting
from tests.servers import Node
from tests.tools import wait_until

pytestmark = pytest.mark.xdist_group("replicas")  # its servers start once


@pytest.fixture(scope="module")
def pair():
    with Node() as primary, Node(replicaof=f"127.0.0.1 {primary.port}") as replica:
        yield primary, replica


@pytest.fixture
def primary(pair):
    primary, replica = pair
    wait_until(lambda: replica.client().info("replication")["master_link_status"] == "up")
    yield primary
    if not replica.is_running:
        replica.start()
    replica.resume()
    primary.client().flushall()


@pytest.fixture
def replica(primary, pair):
    return pair[1]


@pytest.fixture
def replicated(alias_on, primary):
    return alias_on(primary.url)


def on(replica: Node, name: str) -> bool:
    return any(key.endswith(f"lock:{name}") for key in replica.client().scan_iter())


def test_a_lock_is_on_the_replica_when_it_is_acquired(alias_on, primary, replica):
    # The client's timeout limits the wait for the replica.
    replicated = alias_on(primary.url, socket_timeout=0.95)
    for number in range(10):
        with replicated.lock(f"a{number}", min_replicas=1):
            assert on(replica, f"a{number}")
    with replicated.lock("b", min_replicas=1) as lock:
        assert lock.extend(60)
        replica.pause()
        with pytest.raises(ConnectionError, match="'b' was not extended: 0 of 1"):
            lock.extend(60)


def test_a_lock_without_a_confirmation_by_a_replica_is_refused_and_released(replicated, replica):
    replica.pause()
    with pytest.raises(ConnectionError, match=r"'a' was not acquired: 0 of 1 replica"):
        replicated.lock("a", min_replicas=1).acquire()
    with pytest.raises(ConnectionError, match="'b' was not acquired: 0 of 2"):
        asyncio.run(replicated.lock("b", min_replicas=2).aacquire())
    assert replicated.count() == 0


@pytest.mark.parametrize("taken", [False, True])
def test_an_earlier_reply_of_a_replica_does_not_count(replicated, primary, monkeypatch, taken):
    perform = runners._perform

    def perform_and_lose_data(*args):
        answer = perform(*args)
        monkeypatch.undo()
        primary.client().flushall()
        if taken:
            assert start(replicated.lock("a").acquire).result(60)
        return answer

    monkeypatch.setattr(runners, "_perform", perform_and_lose_data)
    lock = replicated.lock("a", min_replicas=1, blocking=False)
    assert lock.acquire() is not taken
    assert (lock.fence_token == replicated.get("a").fence_token) is not taken
    replicated.force_release("a")


def test_a_grant_counts_when_the_replica_has_it(replicated, replica):
    first = replicated.lock("a")
    second = replicated.lock("a", min_replicas=1, blocking_timeout=2)
    assert first.acquire()
    turn = start(second.acquire)
    waiting(replicated, "a", 1)
    replica.pause()
    first.release()
    with pytest.raises(ConnectionError, match="'a' was not acquired: 0 of 1"):
        turn.result(60)
    assert replicated.count() == 0


def test_a_waiter_waits_for_a_replica_that_comes_back(replicated, replica, caplog):
    async def hold():
        async with replicated.lock("a", min_replicas=1, blocking_timeout=60):
            return on(replica, "a")

    replica.pause()
    waiter = start(asyncio.run, hold())
    wait_until(lambda: "through an outage: name='a'" in caplog.text)
    replica.resume()
    assert waiter.result(60)
    assert caplog.text.count("through an outage") == 1


def test_a_replica_that_is_late_is_asked_again(replicated, primary, replica, monkeypatch):
    monkeypatch.setattr(protocol, "REPLICA_WAIT_SECONDS", 60)
    monkeypatch.setattr(runners, "REPLICA_WAIT_SECONDS", 0.02)
    primary.client().config_resetstat()
    replica.pause()
    turn = start(replicated.lock("a", min_replicas=1, auto_renewal=False).acquire)
    wait_until(lambda: calls(primary.client())["wait"])
    replica.resume()
    assert turn.result(60)
    assert replicated.force_release("a") == 1


def test_a_server_that_is_a_replica_for_a_moment_loses_no_lock(
    replicated, primary, replica, moving_clock
):
    with replicated.lock("a", timeout=30, min_replicas=1) as lock:
        primary.client().replicaof("127.0.0.1", 1)
        moving_clock.forward(15)  # an error is the reply to the renewal, and to WAIT
        primary.client().replicaof("NO", "ONE")
        wait_until(lambda: replica.client().info("replication")["master_link_status"] == "up")
        moving_clock.forward(5)
        moving_clock.pass_time(20)
        assert not lock.lost


def test_a_renewal_counts_when_the_replica_has_it(replicated, replica, moving_clock):
    lock, other = (replicated.lock(f"a{n}", timeout=30, min_replicas=n) for n in (1, 0))
    for each in (lock, other):
        assert each.acquire()
    replica.pause()
    moving_clock.forward(15)
    replica.resume()
    moving_clock.forward(5)
    assert not lock.lost
    replica.pause()
    moving_clock.forward(16)
    moving_clock.forward(15)
    assert lock.lost
    assert replicated.get("a1").token  # the holder learns of the loss before the lease expires
    with pytest.raises(LockLost):
        lock.release()
    assert not other.lost  # renewed without the replica
    other.release()


def test_a_lock_without_replicas_does_not_satisfy_min_replicas_on_reentry(replicated):
    with replicated.lock("a", reentrant=True):
        assert not replicated.lock("a", reentrant=True, min_replicas=1, blocking=False).acquire()
        with replicated.lock("a", reentrant=True):
            pass


def test_an_address_that_leads_to_a_new_primary_is_followed(alias_on, tmp_path):
    address = Path(tmp_path, "socket")
    own = alias_on(f"unix://{address}?db=0")

    def fail_over(old, new):
        address.unlink()
        address.symlink_to(new.socket)
        old.client().replicaof("127.0.0.1", 1)

    async def use(old, new):
        async with own.lock("a"):
            own.ping()
        fail_over(old, new)
        with pytest.raises(ReadOnlyError):
            await own.lock("a").aacquire()
        async with own.lock("a"):
            pass
        with pytest.raises(ReadOnlyError):  # on the old connection
            own.lock("a").acquire()
        own.ping()

    with Node(unix=True) as old, Node(unix=True) as new:
        address.symlink_to(old.socket)
        asyncio.run(use(old, new))
