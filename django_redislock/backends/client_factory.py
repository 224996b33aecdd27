"""Make the Redis clients of a cache alias: from its backend, or from ``REDISLOCK_CLIENT``."""

import re
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, NamedTuple

from django.core.cache import InvalidCacheBackendError, caches
from django.core.cache.backends.redis import RedisCache
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string
from redis import ConnectionPool, Redis, SSLConnection
from redis.exceptions import RedisError

from ..conf import conf
from ..keys import Keys
from ..redaction import without_secrets
from .async_client import async_client
from .cluster import with_connection_errors
from .endpoints import POOL_OPTIONS
from .option_checks import check_location, check_options
from .pools import is_made_by_redis_py

MISTAKES = TypeError, ValueError, AttributeError, AssertionError, ImportError, NotImplementedError
"""The exceptions of redis-py and the cache backends for invalid settings."""


class ClientFactory(NamedTuple):
    """Two functions that make the clients of a cache alias. They do not connect.

    Both raise `ImproperlyConfigured` if an option is invalid.
    """

    make: Callable[[], Any]
    """Return a sync client."""

    make_async: Callable[[], Any]
    """Return a client of ``redis.asyncio``."""


def client_factory(alias: str, keys: Keys) -> ClientFactory | None:
    """Return the factory of a cache alias, or None if its backend cannot store locks.

    Args:
        alias: The cache alias.
        keys: Its keys. They determine the shard, if the backend has several.

    Raises:
        ImproperlyConfigured: The cache alias does not exist, or its backend or LOCATION is
            invalid.
    """
    if uses_custom_client(alias):
        return ClientFactory(
            partial(_custom_client, alias, is_async=False),
            partial(_custom_client, alias, is_async=True),
        )
    with _alias_in_errors(alias):
        return _cache_factory(alias, keys)


def keys_of_alias(alias: str) -> Keys:
    """Return the keys of a cache alias.

    Raises:
        ImproperlyConfigured: The cache alias does not exist, or the prefix is invalid.
    """
    with _alias_in_errors(alias):
        key_prefix = caches[alias].key_prefix
        return Keys(f"{key_prefix}:{conf.prefix}" if key_prefix else conf.prefix)


def supports_locks(alias: str) -> bool:
    """Return whether a cache alias can store locks. Does not connect.

    Raises:
        ImproperlyConfigured: An option of the cache alias is invalid.
    """
    factory = client_factory(alias, Keys("any"))
    if factory and not uses_custom_client(alias):
        factory.make()
    return factory is not None


def unsupported_message(alias: str) -> str:
    """Return why the backend of a cache alias cannot store locks."""
    config = caches.settings[alias]
    client_class = config.get("OPTIONS", {}).get("CLIENT_CLASS")
    with_client = f" with CLIENT_CLASS {client_class}" if client_class else ""
    return (
        f"Cannot store locks in the cache alias {alias!r}: its backend {config.get('BACKEND')}"
        f"{with_client} is not supported. Use django.core.cache.backends.redis.RedisCache, "
        "django_redis.cache.RedisCache or django_valkey.cache.ValkeyCache."
    )


def uses_custom_client(alias: str) -> bool:
    """Return whether ``REDISLOCK_CLIENT`` makes the client of a cache alias."""
    return _callable(conf.client, alias) is not None


def _callable(
    clients: Mapping[str | None, Callable[[], Any]], alias: str
) -> Callable[[], Any] | None:
    return clients.get(alias) or (clients.get(None) if alias == conf.cache else None)


def _custom_client(alias: str, *, is_async: bool) -> Any:
    setting = "REDISLOCK_ASYNC_CLIENT" if is_async else "REDISLOCK_CLIENT"
    make = _callable(conf.async_client if is_async else conf.client, alias)
    if make is None:
        raise ImproperlyConfigured(
            f"{setting} is not set for the cache alias {alias!r}. Async code needs it if "
            "REDISLOCK_CLIENT is set: use the dotted path of a callable that returns a "
            "redis.asyncio client."
        )
    try:
        client = with_connection_errors(make)
        check_options(client)
    except (RedisError, ImproperlyConfigured):
        raise
    except Exception as error:
        text = without_secrets(repr(error))
        raise ImproperlyConfigured(f"The client of {setting} is invalid: {text}") from error
    execute = getattr(client, "execute_command", None)
    if execute is None or iscoroutinefunction(execute) != is_async:
        kind = "redis.asyncio client" if is_async else "synchronous redis-py client"
        raise ImproperlyConfigured(
            f"The callable in {setting} must return a {kind}, got a {type(client).__name__}"
        )
    return client


@contextmanager
def _alias_in_errors(alias: str) -> Iterator[None]:
    """Replace the exceptions of the libraries by `ImproperlyConfigured` with the cache alias."""
    try:
        yield
    except (InvalidCacheBackendError, ImproperlyConfigured, *MISTAKES) as error:
        # The alias itself can be an address with a password, by mistake. So a traceback must not
        # show the original exception either.
        raise ImproperlyConfigured(
            without_secrets(f"Cannot store locks in the cache alias {alias!r}: {error}")
        ) from None


def _cache_factory(alias: str, keys: Keys) -> ClientFactory | None:
    backend, config = caches[alias], caches.settings[alias]
    options = config.get("OPTIONS") or {}
    location = config.get("LOCATION", "")
    urls = re.split("[;,]", location) if isinstance(location, str) else [*location]
    make: Callable[[], Any] | None = None
    # If the alias uses one of the other backends, its module has been imported.
    django_redis = sys.modules.get("django_redis.cache")
    django_valkey = sys.modules.get("django_valkey.cache")
    client: Any = getattr(backend, "client", None)
    if isinstance(backend, RedisCache):
        make = partial(_django_client, urls, options)
    elif django_redis and isinstance(backend, django_redis.RedisCache):
        from django_redis.client import DefaultClient, ShardClient

        if isinstance(client, ShardClient):
            make = partial(_shard, alias, keys)
        elif isinstance(client, DefaultClient):
            make = partial(_django_redis_client, alias)
    elif django_valkey and isinstance(backend, django_valkey.ValkeyCache):
        from django_valkey import client as kinds

        others = kinds.SentinelClient | kinds.ShardClient
        if isinstance(client, kinds.DefaultClient) and not isinstance(client, others):
            urls = [re.sub("^valkey", "redis", url) for url in urls]
            make = partial(_valkey_client, alias, urls)
    if make is None:
        return None
    check_location(urls, options)
    return _factory(alias, make)


def _factory(alias: str, make: Callable[[], Any]) -> ClientFactory:
    def make_sync() -> Any:
        with _alias_in_errors(alias):
            client = make()
            check_options(client)
            return client

    def make_async() -> Any:
        client = make_sync()
        with _alias_in_errors(alias):
            return async_client(client)

    return ClientFactory(make_sync, make_async)


def _django_client(urls: Sequence[str], options: Mapping[str, Any]) -> Any:
    """Make a client as Django's backend does. The backend's own client has no public API."""
    options = {name: value for name, value in options.items() if name != "serializer"}
    for name in ("pool_class", "parser_class"):
        if isinstance(options.get(name), str):
            options[name] = import_string(options[name])
    pool_class = options.pop("pool_class", None) or ConnectionPool
    return _with_host_check(Redis(connection_pool=pool_class.from_url(urls[0], **options)))


def _django_redis_client(alias: str) -> Any:
    from django_redis import get_redis_connection

    client = get_redis_connection(alias)
    has_sentinels = hasattr(client.connection_pool, "sentinel_manager")
    return client if has_sentinels else _own_client(client)


def _shard(alias: str, keys: Keys) -> Any:
    """Return the client of the shard that has the keys. All of them have the same hash tag."""
    cache: Any = caches[alias]
    clients = cache.client.connect()
    return _own_client(clients[cache.client.get_server_name(keys.index)])


def _valkey_client(alias: str, urls: Sequence[str]) -> Any:
    """Make a client of redis-py, because valkey-py has other exceptions."""
    cache: Any = caches[alias]
    connections = cache.client.connection_factory
    options = connections.make_connection_params(urls[0]) | connections.pool_cls_kwargs
    options.pop("parser_class", None)
    return _with_host_check(Redis(connection_pool=ConnectionPool.from_url(**options)))


def _own_client(client: Any) -> Any:
    """Return a client with a pool of its own, whose options can be changed."""
    pool = client.connection_pool
    if not is_made_by_redis_py(pool):
        return client
    options = {
        name: value
        for name, value in pool.connection_kwargs.items()
        if not name.startswith(POOL_OPTIONS)
    }
    own = ConnectionPool(pool.connection_class, pool.max_connections, **options)
    return _with_host_check(Redis(connection_pool=own))


def _with_host_check(client: Any) -> Any:
    """Make connections with TLS refuse the certificate of another host, if it is verified at all.

    Before version 6, redis-py does not by default, so any certificate of a trusted authority would
    do. The option stays as it is if the user has set it.
    """
    pool = client.connection_pool
    if issubclass(pool.connection_class, SSLConnection):
        options = pool.connection_kwargs
        if options.get("ssl_cert_reqs", "required") not in (None, "none", ssl.CERT_NONE):
            options.setdefault("ssl_check_hostname", True)
    return client
