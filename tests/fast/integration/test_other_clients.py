"""A holder that acquires its lock again through another client of the same server."""

import os
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
import redis
import redis.asyncio

from django_redislock import AsyncLock, Lock, LockError, LockLost, locks
from django_redislock.testing import EmbeddedServer
from tests.lock_fixtures import CORE, DJANGO_REDIS
from tests.lock_tools import start, waiting
from tests.servers import Node


def ended(function):
    """Run `function`, which acquires a lock twice. It could wait forever, so it runs in a thread
    of its own."""
    start(function).result(30)


@pytest.fixture(scope="module")
def socket_server(tmp_path_factory):
    path = Path(tmp_path_factory.mktemp("server"), "socket")
    with EmbeddedServer(unixsocket=str(path)) as server:
        yield server, path


@pytest.fixture(params=["two clients", "client, alias", "backends", "socket"])
def ways(request, settings, alias_on, socket_server):
    """Two functions that make the lock "a", through two clients of one server."""
    server, path = socket_server
    unprefixed = {"BACKEND": CORE, "LOCATION": server.url}
    settings.CACHES = {**settings.CACHES, "unprefixed": unprefixed}
    clients = [redis.Redis.from_url(server.url) for _ in range(2)]
    first = alias_on(server.url, alias="first").lock
    match request.param:
        case "two clients":
            yield tuple(partial(Lock, client) for client in clients)
        case "client, alias":
            yield partial(Lock, clients[0]), locks.using("unprefixed").lock
        case "backends":
            yield first, alias_on(server.url, alias="second", backend=DJANGO_REDIS).lock
        case "socket":
            url = server.url.replace("redis://", "unix://")
            url = url.replace(f"{server.address}/0", f"{path}?db=0")
            yield first, alias_on(url, alias="second").lock
    for client in clients:
        client.close()


def test_a_holder_is_refused_or_enters_its_lock_again(ways):
    def refused():
        first, second = [make("a") for make in ways]
        with first:
            with pytest.raises(LockError, match="already held by this"):
                second.acquire()
            assert second.acquire(blocking_timeout=0.05) is False
        with second, pytest.raises(LockError, match="already held by this"), first:
            pytest.fail("the block ran")

    def nested():
        first, second = [make("a", reentrant=True) for make in ways]
        with first:
            with second:
                assert second.fence_token == first.fence_token
                assert second.owned()
                assert second.extend(60) is True
            assert first.owned()
        assert not first.locked()
        # The last release counts, whichever it is.
        assert first.acquire()
        assert second.acquire()
        first.release()
        second.assert_held()
        assert second.owned()
        second.release()
        assert not second.locked()

    ended(refused)
    ended(nested)


# Each lock type


def refused(outer, inner):
    def nested():
        with outer, pytest.raises(LockError, match="already held by this"):
            inner.acquire()

    ended(nested)


def allowed(outer, inner):
    def nested():
        with outer, inner:
            assert outer.owned()
            assert inner.owned()

    ended(nested)


def test_each_lock_type_is_entered_again_or_refused():
    other = locks.using("django_redis")  # the same database, with the same keys
    refused(locks.semaphore("a", 1), other.semaphore("a", 1))
    allowed(locks.semaphore("a", 2), other.semaphore("a", 2))
    allowed(locks.semaphore("a", 1), other.semaphore("a", 1, reentrant=True))
    refused(locks.semaphore("a", 3, weight=2), other.semaphore("a", 3, weight=2))
    allowed(locks.read_lock("a"), other.read_lock("a"))
    refused(locks.read_lock("a"), other.write_lock("a"))
    refused(locks.write_lock("a"), other.read_lock("a"))
    allowed(locks.write_lock("a"), other.read_lock("a", reentrant=True))
    refused(locks.lock_many(["b", "c"]), other.lock_many(["a", "b"]))
    refused(locks.lock("b"), other.lock_many(["a", "b"]))
    refused(locks.lock_many(["a", "b"]), other.lock("b"))
    allowed(locks.lock("b"), other.lock_many(["a", "b", "c"], reentrant=True))
    assert not list(locks.active())


def test_quorums(three_servers, settings, alias_on):
    for alias in three_servers:
        settings.CACHES = {**settings.CACHES, f"twin-{alias}": settings.CACHES[alias]}
    twins = [f"twin-{alias}" for alias in three_servers]
    mixed = [three_servers[0], *twins[1:]]
    refused(locks.quorum("a", three_servers), locks.quorum("a", mixed))
    allowed(locks.quorum("a", three_servers), locks.quorum("a", twins, reentrant=True))
    allowed(locks.quorum("a", three_servers), locks.quorum("a", mixed, reentrant=True))
    with Node() as fourth, Node() as fifth:
        for alias, server in (("fourth", fourth), ("fifth", fifth)):
            alias_on(server.url, alias=alias)
        allowed(  # they share less than a majority
            locks.quorum("a", three_servers), locks.quorum("a", [twins[0], "fourth", "fifth"])
        )


# Who is not refused


def test_a_lock_of_the_same_name_elsewhere_is_another_lock(alias_on, own_server):
    first = alias_on(own_server.url, alias="first")
    second = alias_on(own_server.url[:-1] + "1", alias="second")  # another database
    allowed(first.lock("a"), second.lock("a"))
    allowed(first.lock("a", reentrant=True), second.lock("a", reentrant=True))
    with Node() as elsewhere:
        far = alias_on(elsewhere.url, alias="far")
        assert start(far.lock("a").acquire).result(30)

        def nested():
            with first.lock("a"):
                return far.lock("a").acquire()

        waiter = start(nested)
        waiting(far, "a", 1)
        far.force_release("a")
        assert waiter.result(30)
        far.force_release("a")


def test_a_lock_that_was_lost_is_free_for_its_holder():
    lost = locks.lock("a")

    def nested():
        assert lost.acquire()
        locks.force_release("a")
        with locks.using("django_redis").lock("a") as again:
            assert again.owned()
        with pytest.raises(LockLost):
            lost.release()

    ended(nested)


async def test_a_task_with_two_clients():
    url = os.environ["REDIS_URL"]
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(redis.asyncio.Redis.from_url(url)) for _ in range(2)
        ]
        sync_client = stack.enter_context(redis.Redis.from_url(url))
        async with AsyncLock(first, "a"):
            with pytest.raises(LockError, match="already held by this task"):
                await AsyncLock(second, "a").acquire()
            async with AsyncLock(second, "a", reentrant=True) as again:
                assert await again.owned()
            with pytest.raises(LockError, match="already held by this task"):
                Lock(sync_client, "a").acquire()
            with Lock(sync_client, "a", reentrant=True) as in_sync:
                assert in_sync.owned()
        with Lock(sync_client, "a") as held:
            async with AsyncLock(first, "a", reentrant=True) as again:
                assert await again.extend(30)
            assert held.owned()
