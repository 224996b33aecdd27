"""A client of asyncio whose connection pool is like a pool that is not."""

from collections.abc import Mapping
from inspect import signature
from typing import Any

_ONLY_SYNC = {
    "parser_class",
    "retry",
    "connection_class",
    "queue_class",
    "sentinel_manager",
    "service_name",
    # The client-side cache.
    "cache",
    "cache_config",
    "cache_factory",
}


def async_client(sync_pool: type, url: str, options: Mapping[str, Any]) -> Any:
    """The client of a pool such as ``sync_pool.from_url(url, **options)`` makes."""
    from redis import asyncio

    usable = _no_maintenance_news() | _usable(options)
    if "sentinel_manager" in options:
        usable |= {
            "service_name": options["service_name"],
            "sentinel_manager": _sentinels(options["sentinel_manager"]),
        }
    return asyncio.Redis(connection_pool=_like(sync_pool).from_url(url, **usable))


def _like(sync_pool: type) -> Any:
    import redis
    from redis import asyncio, sentinel

    if issubclass(sync_pool, sentinel.SentinelConnectionPool):
        return asyncio.sentinel.SentinelConnectionPool
    if issubclass(sync_pool, redis.BlockingConnectionPool):
        return asyncio.BlockingConnectionPool
    return asyncio.ConnectionPool


def _sentinels(sync: Any) -> Any:
    from redis.asyncio import Sentinel

    told = [each.connection_pool.connection_kwargs for each in sync.sentinels]
    found = Sentinel(  # type: ignore[no-untyped-call]
        [(each["host"], each["port"]) for each in told],
        min_other_sentinels=sync.min_other_sentinels,
        sentinel_kwargs=_usable(sync.sentinel_kwargs),
    )
    # It is no argument of early releases of redis-py 5.
    found._force_master_ip = getattr(sync, "_force_master_ip", None)
    return found


def _usable(options: Mapping[str, Any]) -> dict[str, Any]:
    usable = {name: value for name, value in options.items() if name not in _ONLY_SYNC}
    if twin := _twins().get(options.get("connection_class")):
        usable["connection_class"] = twin
    return usable


def _twins() -> dict[Any, type]:
    """Of redis-py's own classes of connections; those of others have none."""
    import redis
    from redis import asyncio

    return {
        redis.SSLConnection: asyncio.SSLConnection,
        redis.UnixDomainSocketConnection: asyncio.UnixDomainSocketConnection,
    }


def _no_maintenance_news() -> dict[str, Any]:
    # Where redis-py's asyncio listens for them, it does not see that an idle connection
    # was closed: the first command after a restart of the server would fail.
    from redis import asyncio

    try:
        from redis.maint_notifications import MaintNotificationsConfig
    except ImportError:  # redis-py before 7
        return {}
    listens = "maint_notifications_config" in signature(asyncio.ConnectionPool).parameters
    off = {"maint_notifications_config": MaintNotificationsConfig(enabled=False)}
    return off if listens else {}  # in redis-py 7 only the other colour does
