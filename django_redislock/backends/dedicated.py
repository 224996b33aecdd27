"""Clients with a connection pool of their own.

The renewal has one, so that others cannot take its connections, and a release if a pool has no
connection left. With django-redis, all locks have one, except with Sentinels. If they used the
pool of the cache, a fork could copy that pool while a thread of this package has it locked. The
cache of the child process would then wait for that thread, which the child does not have.
"""

from contextlib import suppress
from inspect import iscoroutinefunction
from typing import Any
from weakref import WeakKeyDictionary, ref

import redis
from redis import asyncio

from .cluster import AsyncClusterNodes, AsyncNode, Nodes
from .pools import AsyncLockPool, LockPool, is_made_by_redis_py, no_maintenance_notifications


def dedicated(client: Any) -> Any:
    """Return a client of the same server that has a pool of its own.

    The new client ignores the connection limit of the given client's pool. It opens no connection
    before its first request. The given client is returned if its pool makes connections in a way
    of its own.
    """
    if isinstance(client, Nodes):
        return DedicatedNodes(client)
    if isinstance(client, AsyncNode):
        node = client.node
        options = node.connection_kwargs
        return AsyncNode(
            type(node)(
                server_type=node.server_type, connection_class=node.connection_class, **options
            )
        )
    if not is_made_by_redis_py(client.connection_pool):
        return client
    if iscoroutinefunction(client.execute_command):
        pool = AsyncLockPool(**_options(client.connection_pool))
        return asyncio.Redis(connection_pool=pool)
    return redis.Redis(connection_pool=LockPool(**_options(client.connection_pool)))


class DedicatedNodes(Nodes):
    """The nodes of another `Nodes`, with dedicated connections."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._dedicated: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def clients(self) -> list[Any]:
        return list(self._dedicated.values())

    def client_for(self, key: str) -> Any:
        return self._dedicated_for(self._nodes.client_for(key))

    def follow(self, redirect: Exception) -> Any:
        client = self._nodes.follow(redirect)
        return client and self._dedicated_for(client)

    def refresh(self) -> None:
        self._nodes.refresh()

    def _dedicated_for(self, client: Any) -> Any:
        known = self._dedicated.get(client)
        if known is None:
            known = self._dedicated[client] = dedicated(client)
        return known


class DedicatedClient:
    """The dedicated client of one user, such as the renewal, for the client that others share.

    Others may use up the shared pool. If the renewal depended on it, the holder that all of them
    wait for would lose its lock.
    """

    def __init__(self) -> None:
        self._client: Any = None
        self._shared: ref[Any] | None = None  # not strong: it would keep what belongs to it alive
        self._primary: Any = None

    @property
    def is_dedicated(self) -> bool:
        """Whether the client is not the shared one."""
        return self._client is not None

    def client_for(self, shared: Any) -> tuple[Any, Any]:
        """Return the client that belongs to `shared`, and an earlier one to close, or None."""
        # The primary that a Sentinel pool found last. An old connection may lead to another one.
        primary = getattr(getattr(shared, "connection_pool", None), "master_address", None)
        known, old = self._shared and self._shared(), None
        if known is not shared or self._primary != primary:
            old, client = self.take(), dedicated(shared)
            self._client = None if client is shared else client
            self._shared, self._primary = ref(shared), primary
        return self._client or shared, old

    def take(self) -> Any:
        """Forget the client, and return it if it has to be closed."""
        client = self._client
        self._client = self._shared = self._primary = None
        return client


def close(client: Any) -> None:
    """Close all connections of a client that `dedicated` made."""
    for each in client.clients() if isinstance(client, Nodes) else [client]:
        with suppress(Exception):
            each.connection_pool.disconnect()


async def aclose(client: Any) -> None:
    """Close all connections of an async client, and of its Sentinels."""
    if isinstance(client, AsyncClusterNodes):
        await client.aclose()
        return
    for each in client.clients() if isinstance(client, Nodes) else [client]:
        sentinels = getattr(each.connection_pool, "sentinel_manager", None)
        for connected in [each, *(sentinels.sentinels if sentinels else ())]:
            with suppress(Exception):
                await connected.connection_pool.disconnect()


def _options(pool: Any) -> dict[str, Any]:
    # A pool of Sentinel passes itself to its connections, which ask it for the primary. So they
    # do without a Sentinel pool of their own.
    options = {**pool.connection_kwargs, "connection_class": pool.connection_class}
    enabled = getattr(pool, "maint_notifications_enabled", None)
    if enabled and not enabled():  # A new pool would enable them again.
        options |= no_maintenance_notifications(redis.ConnectionPool)
    return options
