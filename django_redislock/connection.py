"""From an alias of ``CACHES`` to the server that keeps its locks."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from django.core.cache import InvalidCacheBackendError, caches
from django.core.cache.backends.redis import RedisCache
from django.core.exceptions import ImproperlyConfigured

from .conf import conf
from .keys import Keys

if TYPE_CHECKING:
    import redis
    import redis.asyncio

Client: TypeAlias = "redis.Redis"
AsyncClient: TypeAlias = "redis.asyncio.Redis"


class Server:
    """One server: how to reach it, in both colours, and the keys under its prefix."""

    def __init__(
        self, alias: str, prefix: str, client: Client, connect: Callable[[], AsyncClient]
    ) -> None:
        self.alias = alias
        self.keys = Keys(prefix)
        self.client = client
        self._connect = connect
        self._of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()

    @property
    def address(self) -> str | None:
        """Where it is, as far as its client is told; None where that is asked of others."""
        pool = getattr(self.client, "connection_pool", None)
        if pool is None or hasattr(pool, "sentinel_manager"):
            return None
        told = pool.connection_kwargs
        if "path" in told:
            return str(told["path"])
        host = str(told.get("host") or "localhost").replace("localhost", "127.0.0.1")
        return f"{host}:{told.get('port') or 6379}"

    @property
    def database(self) -> tuple[str, int] | None:
        """Its address and the number of the database; None where the address is not known."""
        told = self.client.connection_pool.connection_kwargs if self.address else {}
        return (self.address, int(told.get("db") or 0)) if self.address else None

    async def async_client(self) -> AsyncClient:
        """The client of the running event loop, closed when the loop is shut down."""
        loop = asyncio.get_running_loop()
        if loop not in self._of_loop:
            for closed in [each for each in self._of_loop if each.is_closed()]:
                self._of_loop.pop(closed, None)  # it was not shut down, and is kept by its client
            client = self._connect()
            closing = self._close_with_loop(loop, client)
            self._of_loop[loop] = client, closing
            await anext(closing)
        found: AsyncClient = self._of_loop[loop][0]
        return found

    async def _close_with_loop(
        self, loop: asyncio.AbstractEventLoop, client: AsyncClient
    ) -> AsyncGenerator[None, None]:
        # A loop that shuts down finishes the asynchronous generators begun on it;
        # asyncio has no other hook that is called then.
        try:
            yield
        finally:
            self._of_loop.pop(loop, None)
            with suppress(Exception):
                await client.aclose(close_connection_pool=True)


class GivenServer(Server):
    """The server of a client that somebody else made, sync or async, and will close. It is the
    same for all clients over one connection pool."""

    def __init__(self, client: Any) -> None:
        super().__init__("", conf.prefix, client, lambda: client)
        self._pool = getattr(client, "connection_pool", client)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, GivenServer)
            and self._pool is other._pool
            and self.keys == other.keys
        )

    def __hash__(self) -> int:
        return hash((id(self._pool), self.keys))

    async def async_client(self) -> AsyncClient:
        """The client itself, which must be of ``redis.asyncio``."""
        given: AsyncClient = self._connect()
        if not iscoroutinefunction(given.execute_command):
            raise TypeError(f"This needs a client of redis.asyncio, got {given!r}")
        return given


def server(alias: str) -> Server:
    """The server of an alias, over the cache's own connection pool.

    Raises `ImproperlyConfigured`, naming the alias and its backend, if there is
    no such alias or its backend is none that locks can live on.
    """
    global _known
    if _known[0] is not caches.settings:  # override_settings replaces it
        _known = caches.settings, {}
    servers, key = _known[1], (alias, conf.prefix)
    return servers.get(key) or servers.setdefault(key, _server(alias))


_known: tuple[object, dict[tuple[str, str], Server]] = (None, {})
"""The servers of the settings as they stand. No lock: a fork could copy it while it is held."""


def _server(alias: str) -> Server:
    try:
        backend = caches[alias]
    except InvalidCacheBackendError as error:
        raise ImproperlyConfigured(
            f"Locks can't use the cache alias {alias!r}: {error}"
        ) from error
    reach = _reach(backend)
    if reach is None:
        raise ImproperlyConfigured(unfit(alias))
    own_prefix = backend.key_prefix
    prefix = f"{own_prefix}:{conf.prefix}" if own_prefix else conf.prefix
    return Server(alias, prefix, *reach)


def unfit(alias: str) -> str:
    """What is wrong with an alias whose backend can't keep locks."""
    name = caches.settings[alias].get("BACKEND")
    return (
        f"Locks can't use the cache alias {alias!r}: its backend {name}, as it is set up, is "
        "none that they can live on. Use django.core.cache.backends.redis.RedisCache, or "
        "django_redis.cache.RedisCache with its default client."
    )


def fits(alias: str) -> bool:
    """Whether locks can live on the backend of an alias. Does not connect."""
    return _reach(caches[alias]) is not None


def _reach(backend: Any) -> tuple[Client, Callable[[], AsyncClient]] | None:
    if isinstance(backend, RedisCache):
        return _reach_core(backend._cache)
    django_redis = sys.modules.get("django_redis.cache")  # there, if it is the backend's
    if django_redis and isinstance(backend, django_redis.RedisCache):
        return _reach_django_redis(backend.client)
    return None


def _reach_core(cache: Any) -> tuple[Client, Callable[[], AsyncClient]]:
    def connect() -> AsyncClient:
        return _async_client(cache._pool_class, cache._servers[0], cache._pool_options)

    return cache.get_client(None, write=True), connect


def _reach_django_redis(client: Any) -> tuple[Client, Callable[[], AsyncClient]] | None:
    from django_redis.client import DefaultClient, ShardClient

    if not isinstance(client, DefaultClient) or isinstance(client, ShardClient):
        return None

    def connect() -> AsyncClient:
        factory = client.connection_factory
        options = factory.make_connection_params(client._server[0]) | factory.pool_cls_kwargs
        return _async_client(factory.pool_cls, options.pop("url"), options)

    return client.get_client(write=True), connect


_ONLY_SYNC = {"parser_class", "retry", "connection_class", "queue_class"}


def _async_client(sync_pool: type, url: str, options: Mapping[str, Any]) -> AsyncClient:
    from redis import BlockingConnectionPool, asyncio

    blocking = issubclass(sync_pool, BlockingConnectionPool)
    usable = {name: value for name, value in options.items() if name not in _ONLY_SYNC}
    usable = _no_maintenance_news() | usable
    pool_class = asyncio.BlockingConnectionPool if blocking else asyncio.ConnectionPool
    return asyncio.Redis(connection_pool=pool_class.from_url(url, **usable))


def _no_maintenance_news() -> dict[str, Any]:
    # Where redis-py's asyncio listens for them, it does not see that an idle connection
    # was closed: the first command after a restart of the server would fail.
    try:
        from redis.maint_notifications import MaintNotificationsConfig
    except ImportError:  # redis-py before 7
        return {}
    return {"maint_notifications_config": MaintNotificationsConfig(enabled=False)}
