"""The servers that locks live on, as settings name them: an alias of ``CACHES``, or a client."""

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import cached_property, partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary, WeakSet

from django.core.cache import InvalidCacheBackendError, caches
from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import ConnectionError

from ..conf import conf
from ..keys import BUCKETS, Keys
from ..redaction import without_secrets
from .backends import Way, way_to
from .cluster import AsyncClusterNodes, Nodes, nodes_of
from .custom_client import has_own, own_async_client, own_client
from .option_checks import refuse_mistaken_options

if TYPE_CHECKING:
    import redis
    import redis.asyncio

Client: TypeAlias = "redis.Redis | Nodes"
AsyncClient: TypeAlias = "redis.asyncio.Redis | Nodes"


MISTAKES = TypeError, ValueError, AttributeError, AssertionError, ImportError
"""What is raised for options that nobody knows, or that are of a wrong kind, and for classes that
can't be imported. The backends' libraries assert, too."""


class Server:
    """One server, or several that share the buckets: how to reach it, in both colours, and the
    keys under its prefix."""

    def __init__(
        self,
        alias: str,
        prefix: str,
        way: Way,
    ) -> None:
        self.alias = alias
        self.keys = Keys(prefix, apart=way.may_be_several)
        self._way = way
        self._of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()

    @cached_property
    def client(self) -> Any:
        """That of redis-py, or `Nodes`. Raises redis-py's `ConnectionError` where it can't be
        made without a connection, and `ImproperlyConfigured` where it can't be made at all."""
        return nodes_of(self._way.connect())

    def part_of(self, name: str) -> int | None:
        """Which part of it keeps that lock, and fails alone: its bucket; None where it is one."""
        return self.keys.of(name).bucket if self._way.may_be_several else None

    key = ""
    """One that it keeps, where it is one of several; see `Ask`."""

    @property
    def whole(self) -> "Server":
        """What it is one of, or itself."""
        return self

    def members(self) -> "list[Server]":
        """The servers that share the buckets, each to be looked at alone; else itself."""
        if not isinstance(self.client, Nodes):
            return [self]
        buckets: dict[Any, list[int]] = {}
        for bucket in range(BUCKETS):
            client = self.client.at(self.keys.inspect(bucket)[0])
            buckets.setdefault(client, []).append(bucket)
        return [Member(self, client, kept) for client, kept in buckets.items()]

    def keeps(self, name: str) -> bool:
        return True

    @property
    def pool(self) -> Any:
        """Its client's; None where that has none, or can't be made."""
        try:
            return getattr(self.client, "connection_pool", None)
        except (ConnectionError, ImproperlyConfigured):
            return None

    @property
    def address(self) -> str | None:
        """Where it is, as far as its client is told; None where that is asked of others."""
        pool = self.pool
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
        told = self.pool.connection_kwargs if self.address else {}
        return (self.address, int(told.get("db") or 0)) if self.address else None

    async def async_client(self) -> AsyncClient:
        """The client of the running event loop, closed when the loop is shut down."""
        loop = asyncio.get_running_loop()
        if loop not in self._of_loop:
            self._forget_closed_loops()
            client = nodes_of(self._way.aconnect())
            closing = self._close_with_loop(loop, client)
            self._of_loop[loop] = client, closing
            await anext(closing)
        return await _ready(self._of_loop[loop][0])

    def _forget_closed_loops(self) -> None:
        # Those that were not shut down are kept by their clients. All references at once, as other
        # threads add theirs meanwhile.
        for reference in self._of_loop.keyrefs():
            if (loop := reference()) and loop.is_closed():
                self._of_loop.pop(loop, None)

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
                await _close(client)


class Member(Server):
    """One of the servers that share the buckets."""

    def __init__(self, whole: Server, client: Any, buckets: list[int]) -> None:
        super().__init__(
            whole.alias, whole.keys.prefix, whole._way._replace(connect=lambda: client)
        )
        self.key = self.keys.inspect(buckets[0])[0]
        self._whole = whole
        self._buckets = buckets

    @property
    def whole(self) -> Server:
        return self._whole

    def keeps(self, name: str) -> bool:
        return self.keys.of(name).bucket in self._buckets


async def _ready(client: AsyncClient) -> AsyncClient:
    if isinstance(client, AsyncClusterNodes):
        await client.ready()
    return client


async def _close(client: Any) -> None:
    if isinstance(client, AsyncClusterNodes):
        await client.aclose()
    elif isinstance(client, Nodes):
        for each in client.every():
            await _close(each)
    else:
        await client.aclose(close_connection_pool=True)
        sentinels = getattr(client.connection_pool, "sentinel_manager", None)
        for each in sentinels.sentinels if sentinels else ():
            await each.aclose(close_connection_pool=True)


class GivenServer(Server):
    """The server of a client that somebody else made, sync or async, and will close. It is the
    same for all clients over one connection pool."""

    def __init__(self, client: Any) -> None:
        several = isinstance(nodes_of(client), Nodes)
        super().__init__("", conf.prefix, Way(lambda: client, lambda: client, several))
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
        given: Any = self._way.aconnect()
        if not iscoroutinefunction(given.execute_command):
            raise TypeError(
                f"Async methods need a redis.asyncio client, got {without_secrets(repr(given))}"
            )
        return await _ready(self.client)


def server(alias: str) -> Server:
    """The server of an alias, over the cache's own connection pool.

    Raises `ImproperlyConfigured`, naming the alias and its backend, if there is
    no such alias or its backend is none that locks can live on.
    """
    global _known
    if _known[0] is not caches.settings:  # override_settings replaces it
        _known = caches.settings, {}
    servers, key = _known[1], (alias, conf.prefix, conf.cache, conf.client, conf.async_client)
    return servers.get(key) or servers.setdefault(key, _server(alias))


_known: tuple[object, dict[tuple[object, ...], Server]] = (None, {})
"""The servers of the settings as they stand. No lock: a fork could copy it while it is held."""


_made_here: WeakSet[Server] = WeakSet()


def _make_anew() -> None:
    # A fork may have copied a lock of a Cluster's client while it was held, for ever.
    for each in _made_here:
        each.__dict__.pop("client", None)


os.register_at_fork(after_in_child=_make_anew)


def _server(alias: str) -> Server:
    backend = _backend(alias)
    own = Way(own_client, own_async_client, may_be_several=True)
    way = own if has_own(alias) else _way_to(alias, backend)
    if way is None:
        raise ImproperlyConfigured(unfit(alias))
    own_prefix = backend.key_prefix
    prefix = f"{own_prefix}:{conf.prefix}" if own_prefix else conf.prefix
    connect, aconnect = (partial(_made, alias, each) for each in (way.connect, way.aconnect))
    found = Server(alias, prefix, Way(connect, aconnect, way.may_be_several))
    if has_own(alias):
        _made_here.add(found)
    return found


def _backend(alias: str) -> Any:
    try:
        return caches[alias]
    except (InvalidCacheBackendError, *MISTAKES) as error:
        raise ImproperlyConfigured(_refusal(alias, error)) from None


def _way_to(alias: str, backend: Any) -> Way | None:
    try:
        return way_to(backend)
    except ImproperlyConfigured as error:
        raise ImproperlyConfigured(_refusal(alias, error)) from None
    except MISTAKES:
        # It is made for locks, and so it is for whoever asks for its client to hear of it.
        again = partial(way_to, backend)
        return Way(again, again)


def _made(alias: str, connect: Callable[[], Any]) -> Any:
    """A client, or `Nodes`, with options that a connection takes. Does not connect."""
    try:
        client = connect()
        for each in client.every() if isinstance(client, Nodes) else [client]:
            refuse_mistaken_options(each)
    except (*MISTAKES, ImproperlyConfigured) as error:
        if has_own(alias):
            if isinstance(error, ImproperlyConfigured):
                raise  # It names the setting.
            text = f"The client of REDISLOCK_CLIENT or REDISLOCK_ASYNC_CLIENT is invalid: {error}"
            raise ImproperlyConfigured(without_secrets(text)) from error
        raise ImproperlyConfigured(_refusal(alias, error)) from error
    return client


def _refusal(alias: str, error: Exception) -> str:
    text = str(error)
    if unknown := _UNKNOWN_OPTION.search(text):
        text = f"OPTIONS or LOCATION has the unknown option {unknown[1]}."
    # The alias may be an address that somebody put in the wrong place.
    return without_secrets(f"Cannot store locks in the cache alias {alias!r}: {text}")


_UNKNOWN_OPTION = re.compile(r"\(\) got an unexpected keyword argument ('\w+')")


def unfit(alias: str) -> str:
    """Return why the backend of an alias cannot store locks."""
    backend = caches.settings[alias]
    name, client = backend.get("BACKEND"), backend.get("OPTIONS", {}).get("CLIENT_CLASS")
    with_client = f" with CLIENT_CLASS {client}" if client else ""
    return (
        f"Cannot store locks in the cache alias {alias!r}: its backend {name}{with_client} is not "
        "supported. Use django.core.cache.backends.redis.RedisCache, "
        "django_redis.cache.RedisCache or django_valkey.cache.ValkeyCache."
    )


def fits(alias: str) -> bool:
    """Whether locks can live on the backend of an alias. Does not connect. Raises
    `ImproperlyConfigured` where they could if it were not for a mistake in its options."""
    if has_own(alias):
        return True
    way = _way_to(alias, _backend(alias))
    if way:
        _made(alias, way.connect)
    return way is not None
