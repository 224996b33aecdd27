"""Make a ``redis.asyncio`` client with the same options as a sync client."""

from collections.abc import Mapping
from inspect import signature
from typing import Any

import redis
from redis import asyncio, sentinel

from .endpoints import POOL_OPTIONS

SYNC_ONLY = {"connection_pool", "event_dispatcher", "himport_registry", "parser_class", "retry"}
"""The options whose values asyncio connections cannot use."""

ASYNC_CLASSES: dict[type, Any] = {
    sentinel.SentinelManagedSSLConnection: asyncio.sentinel.SentinelManagedSSLConnection,
    sentinel.SentinelManagedConnection: asyncio.sentinel.SentinelManagedConnection,
    redis.SSLConnection: asyncio.SSLConnection,
    redis.UnixDomainSocketConnection: asyncio.UnixDomainSocketConnection,
}
"""The classes of connections. All others become an asyncio `Connection`."""


def async_client(client: Any) -> Any:
    """Return an asyncio client of the same server. Does not connect.

    Args:
        client: A client of redis-py. Its pool can be a `BlockingConnectionPool` or a
            `SentinelConnectionPool`.
    """
    pool = client.connection_pool
    known = (ASYNC_CLASSES.get(each) for each in pool.connection_class.__mro__)
    connection_class: Any = next(filter(None, known), asyncio.Connection)
    options = {
        "max_connections": pool.max_connections,
        "connection_class": connection_class,
        **_shared_options(pool.connection_kwargs, connection_class),
    }
    pool_class: Any = asyncio.ConnectionPool
    if isinstance(pool, sentinel.SentinelConnectionPool):
        pool_class = asyncio.sentinel.SentinelConnectionPool
        options |= {
            "service_name": pool.service_name,
            "sentinel_manager": _async_sentinel(pool.sentinel_manager),
            "is_master": pool.is_master,
            "check_connection": pool.check_connection,
        }
    return asyncio.Redis(connection_pool=pool_class(**options))


def _async_sentinel(sync: Any) -> Any:
    found = asyncio.Sentinel([])  # type: ignore[no-untyped-call]
    vars(found).update(vars(sync))
    found.sentinels = [async_client(each) for each in sync.sentinels]
    return found


def _shared_options(options: Mapping[str, Any], connection_class: type) -> dict[str, Any]:
    accepted = {
        name
        for each in connection_class.__mro__
        for name in signature(each.__init__).parameters  # type: ignore[misc]  # of a class
    }
    return {
        name: value
        for name, value in options.items()
        if name in accepted - SYNC_ONLY and not name.startswith(POOL_OPTIONS)
    }
