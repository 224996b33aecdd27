"""From a cache backend to a client of the server that it writes to, in both colours."""

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from django.core.cache.backends.redis import RedisCache

from .async_client import async_client
from .cluster import Nodes
from .redis_urls import refuse_malformed


class Way(NamedTuple):
    """How to reach what keeps the locks."""

    connect: Callable[[], Any]
    """Makes a client, or `Nodes`."""

    aconnect: Callable[[], Any]
    """Makes its twin of asyncio."""

    may_be_several: bool = False
    """Whether it may be several servers that share the buckets."""


@dataclass(frozen=True, slots=True)
class Pool:
    """How a backend makes a connection pool."""

    kind: type
    url: str = field(repr=False)
    options: Mapping[str, Any] = field(repr=False)

    def connect(self) -> Any:
        """A client of asyncio with a pool like it."""
        return async_client(self.kind, self.url, self.options)


def way_to(backend: Any) -> Way | None:
    """None for a backend on which locks can't live. Does not connect. Raises
    `ImproperlyConfigured` for an address that can't be read."""
    if isinstance(backend, RedisCache):
        return _core(backend._cache)
    django_redis = sys.modules.get("django_redis.cache")  # there, if it is the backend's
    if django_redis and isinstance(backend, django_redis.RedisCache):
        return _django_redis(backend.client)
    django_valkey = sys.modules.get("django_valkey.cache")
    if django_valkey and isinstance(backend, django_valkey.ValkeyCache):
        return _django_valkey(backend.client)
    return None


def _core(cache: Any) -> Way:
    refuse_malformed(cache._servers, cache._pool_class)
    pool = Pool(cache._pool_class, cache._servers[0], cache._pool_options)
    return Way(partial(cache.get_client, None, write=True), pool.connect)


def _django_redis(client: Any) -> Way | None:
    from django_redis.client import DefaultClient, ShardClient

    if isinstance(client, ShardClient):
        return _shards(client)
    if not isinstance(client, DefaultClient):
        return None
    refuse_malformed(client._server, client.connection_factory.pool_cls)

    def connect() -> Any:
        return _like(client.get_client(write=True), client, client._server[0]).connect()

    return Way(partial(client.get_client, write=True), connect)


def _shards(client: Any) -> Way:
    refuse_malformed(client._server)

    def connect() -> Nodes:
        twins = {
            name: _like(each, client, name).connect() for name, each in client._serverdict.items()
        }
        return Nodes([*twins.values()], lambda key: twins[client.get_server_name(key)])

    def shards() -> Nodes:
        return Nodes([*client._serverdict.values()], client.get_server)

    return Way(shards, connect, may_be_several=True)


def _like(sync: Any, client: Any, url: str) -> Pool:
    factory = client.connection_factory
    options = factory.make_connection_params(url) | factory.pool_cls_kwargs
    sentinels = getattr(sync.connection_pool, "sentinel_manager", None)
    if sentinels:
        options |= {
            "sentinel_manager": sentinels,
            "service_name": sync.connection_pool.service_name,
        }
    return Pool(factory.pool_cls, options.pop("url"), options)


def _django_valkey(client: Any) -> Way | None:
    # Its clients are valkey-py's, whose errors are none of redis-py's: locks have their own
    # connections to the same server.
    from django_valkey.client import DefaultClient, SentinelClient, ShardClient

    if not isinstance(client, DefaultClient) or isinstance(client, SentinelClient | ShardClient):
        return None
    from redis import ConnectionPool, Redis

    factory = client.connection_factory
    options = factory.make_connection_params(client._server[0]) | factory.pool_cls_kwargs
    options.pop("parser_class", None)
    url = re.sub("^valkey", "redis", options.pop("url"))
    refuse_malformed([url])

    def connect() -> Any:
        return Redis(connection_pool=ConnectionPool.from_url(url, **options))

    return Way(connect, Pool(ConnectionPool, url, options).connect)
