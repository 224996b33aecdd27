"""A Cluster with moving slots and failing nodes, and a client that the project makes."""

import asyncio
import contextlib
import socket
import threading
import time
from functools import partial

import pytest
import redis
import redis.asyncio
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    ConnectionError,
    MovedError,
    ReadOnlyError,
    TimeoutError,
    TryAgainError,
)

from django_redislock import AsyncLock, Lock, locks
from django_redislock.backends import cluster as nodes_of_cluster
from django_redislock.backends import servers
from django_redislock.conf import conf
from django_redislock.engine.transport import call
from tests.lock_tools import awaiting, warnings_of_block
from tests.servers import Cluster
from tests.tools import no_new_threads, wait_until

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(300)]

ME = __name__

startup: list[tuple[str, int]] = []
clients: list[redis.RedisCluster] = []


def made(**options):
    host, port = startup[0]
    clients.append(redis.RedisCluster(host=host, port=port, **options))
    return clients[-1]


def async_made(**options):
    host, port = startup[0]
    return redis.asyncio.RedisCluster(host=host, port=port, **options)


READING = {"socket_timeout": 1, "read_from_replicas": True}

# Functions for the settings.
client = partial(made, socket_timeout=1)
patient_client = partial(made, socket_timeout=None)
reading_client = partial(made, **READING)
async_client = partial(async_made, socket_timeout=1)
async_reading_client = partial(async_made, **READING)
small_async_client = partial(async_made, max_connections=4)


@pytest.fixture(scope="module")
def running():
    with Cluster(cluster_node_timeout=3000) as cluster:  # for a busy machine
        yield cluster


@pytest.fixture
def cluster(running, settings):
    running.wait_in_sync()
    startup[:] = running.startup
    settings.REDISLOCK_CLIENT = f"{ME}.client"
    settings.REDISLOCK_ASYNC_CLIENT = f"{ME}.async_client"
    settings.REDISLOCK_PREFIX = "of the cluster"  # makes a new server object
    settings.CACHES = {**settings.CACHES}
    yield running
    startup[:] = running.startup
    settings.REDISLOCK_PREFIX = "of the cluster"
    wait_until(lambda: locks.count() == 0)
    while clients:
        clients.pop().close()


def test_aliases_with_prefixes_of_their_own_use_all_primaries(cluster, settings):
    aliases = {}  # each on another primary, with its URL
    for number in range(100):
        url = cluster.owner(key_slot(f"{number}:{conf.prefix}".encode())).url
        if url not in aliases.values():
            aliases[f"{number}"] = url
    settings.CACHES = settings.CACHES | {
        alias: settings.CACHES["default"] | {"KEY_PREFIX": alias} for alias in aliases
    }
    settings.REDISLOCK_CLIENT = dict.fromkeys(aliases, f"{ME}.client")
    settings.REDISLOCK_ASYNC_CLIENT = dict.fromkeys(aliases, f"{ME}.async_client")
    for alias, url in aliases.items():
        with locks.using(alias).lock(alias):
            assert [info.name for info in locks.using(alias).active()] == [alias]
            assert redis.Redis.from_url(url).exists(f"{{{alias}:{conf.prefix}}}:lock:{alias}")

    async def in_async_code():
        for alias in aliases:
            async with locks.using(alias).lock(alias):
                assert await locks.using(alias).acount() == 1

    asyncio.run(in_async_code())


def slot_of(name: str) -> int:
    return key_slot(servers["default"].keys.of(name).lock.encode())


def another(cluster: Cluster, slot: int):
    owner = cluster.owner(slot)
    masters = [node for node in cluster.nodes if node.ask("ROLE")[0] == "master"]
    return next(node for node in masters if node is not owner)


@pytest.mark.parametrize("prefix", ["{}", "{a}{}", "{a"])
def test_a_prefix_may_contain_braces(cluster, settings, prefix):
    settings.CACHES["default"] = settings.CACHES["default"] | {"KEY_PREFIX": prefix}
    names = [f"name {number}" for number in range(20)]
    with locks.lock_many(names):
        assert {info.name for info in locks.active()} == set(names)
    assert len(locks.history()) == len(names)


@pytest.mark.hurried
def test_a_redirection_to_an_unresponsive_node_is_an_error_in_time(cluster, settings):
    settings.REDISLOCK_CLIENT = f"{ME}.patient_client"
    slot = slot_of("a")
    with locks.lock("a"):
        pass
    new = another(cluster, slot)
    cluster.move_slot(slot, new)
    new.pause()
    resume = threading.Timer(5, new.resume)
    resume.start()
    began = time.monotonic()
    try:
        with pytest.raises(TimeoutError):
            locks.lock("a", blocking_timeout=0.5).acquire()
        assert time.monotonic() - began < 4.5
    finally:
        resume.cancel()
        new.resume()


def test_a_redirection_to_an_unknown_node_refreshes_the_topology(cluster):
    slot = slot_of("a")

    def redirected(owner):
        keeper = owner.node()
        for error in (MovedError, AskError):
            assert owner.follow(error(f"{slot} 127.0.0.1:1")) is None
        assert owner.node() is keeper

    async def use():
        for _ in range(3):
            async with locks.lock("a"):
                pass
            nodes = await servers["default"].async_client()
            redirected(nodes)
            await asyncio.wait([nodes._refresh_task])

    redirected(servers["default"].client)
    with warnings_of_block() as warned:
        asyncio.run(use())
    assert warned == [], "connections are closed"


def test_a_new_key_is_written_where_its_slot_moves_to(cluster):
    """The replicas that have an earlier command, on another node, do not count."""
    client, slot = servers["default"].client, slot_of("a")
    key = servers["default"].keys.of("a").lock + " new"
    with cluster.moving(slot, new := another(cluster, slot)):
        assert call(client, [("SET", key, 1), ("WAIT", 1, 1000)]) == [b"OK", 0]
        assert new.ask("CLUSTER", "COUNTKEYSINSLOT", slot) == 1
    assert call(client, [("DEL", key)]) == [1]


def test_a_node_that_became_a_replica_is_left_although_no_thread_can_be_started(cluster):
    owner = nodes_of_cluster.SlotOwner(servers["default"].client.cluster, "a")
    with no_new_threads():
        assert owner.follow(ReadOnlyError()) is None
    assert call(owner.node(), [("PING",)]) == [b"PONG"]


def test_a_slot_that_does_not_arrive_is_an_error_without_leftovers(cluster, monkeypatch):
    monkeypatch.setattr(nodes_of_cluster, "SLOT_MOVE_SECONDS", 0.1)
    slot = slot_of("a")
    assert locks.lock("a").acquire()
    with cluster.moving(slot, another(cluster, slot)):
        with pytest.raises(TryAgainError):
            locks.get("a")
        with pytest.raises(redis.RedisError):
            asyncio.run(locks.aget("a"))
    assert locks.force_release("a") == 1


def test_a_removed_node_that_still_runs_is_not_asked_indefinitely():
    def take_out():
        slot = key_slot(lock._server().keys.of("a").lock.encode())
        smaller.remove(smaller.owner(slot), another(smaller, slot))

    async def use():
        host, port = smaller.startup[0]
        async with redis.asyncio.RedisCluster(host=host, port=port) as client:
            async with AsyncLock(client, "a"):
                pass
            await asyncio.to_thread(take_out)
            async with AsyncLock(client, "a", blocking_timeout=4):
                pass

    with Cluster(replicas=0) as smaller:
        lock = Lock(smaller.client(), "a", blocking_timeout=4)
        with lock:
            pass
        asyncio.run(use())
        with lock:
            pass


@pytest.mark.filterwarnings("ignore:.*'read_from_replicas':DeprecationWarning")
def test_a_client_that_reads_from_replicas_follows_a_failover(cluster, settings):
    settings.REDISLOCK_CLIENT = f"{ME}.reading_client"
    settings.REDISLOCK_ASYNC_CLIENT = f"{ME}.async_reading_client"

    async def use():
        async with locks.lock("b"):
            await asyncio.to_thread(cluster.failover, slot_of("a"))
            for _ in range(2):
                async with locks.lock("a"):
                    pass

    with locks.lock("a") as lock:
        cluster.failover(slot_of("a"))
        assert lock.extend(60)
    asyncio.run(use())
    cluster.wait_in_sync()


def test_a_cluster_without_a_reachable_node_is_a_connection_error(cluster, settings):
    async def hangs():
        asked = asyncio.create_task(locks.lock("a", blocking_timeout=0.3).aacquire())
        turned = 0
        while not asked.done():
            await asyncio.sleep(0.01)
            turned += 1
        with pytest.raises((ConnectionError, TimeoutError)):
            await asked
        assert turned > 5, "the loop was not blocked"

    startup[:] = [("127.0.0.1", 1)]
    settings.REDISLOCK_PREFIX = "nowhere"
    with pytest.raises(ConnectionError):
        locks.lock("a").acquire()
    with pytest.raises(ConnectionError):
        asyncio.run(locks.acount())
    connection, *others = locks.health().findings
    assert connection.status == "failed"
    assert {each.status for each in others} == {"unknown"}
    assert asyncio.run(locks.ahealth()).get("connection").status == "failed"
    with socket.create_server(("127.0.0.1", 0)) as hole:  # accepts connections, and never replies
        startup[:] = [hole.getsockname()]
        settings.REDISLOCK_PREFIX = "that hangs"
        asyncio.run(hangs())


# Async clients


def test_more_waiters_than_connections_are_served(cluster, settings):
    """A wait for replicas that is cancelled leaves its connection usable."""
    settings.REDISLOCK_ASYNC_CLIENT = f"{ME}.small_async_client"

    async def turn(replicas):
        async with locks.lock("b", min_replicas=replicas):
            await asyncio.sleep(0)

    async def use():
        await locks.aget("a")  # reads the slots, which must not be cancelled in redis-py 5
        for number in range(20):
            task = asyncio.create_task(locks.lock("a", min_replicas=1).aacquire())
            await asyncio.sleep(0.0005 * number)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
                await locks.aforce_release("a")
        async with locks.lock("b"):
            turns = [asyncio.create_task(turn(number % 2)) for number in range(8)]
            await awaiting(locks, "b", 8)
        await asyncio.gather(*turns)

    asyncio.run(use())
    wait_until(lambda: locks.force_release("a") or not locks.get("a"))
