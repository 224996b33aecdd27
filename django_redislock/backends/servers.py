"""The servers that store locks: one for a cache alias in the settings, or for a client."""

import asyncio
import os
from collections.abc import AsyncGenerator, Container
from contextlib import suppress
from inspect import iscoroutinefunction
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import redis.asyncio
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import receiver
from django.utils.functional import cached_property
from redis.exceptions import ConnectionError

from ..conf import conf
from ..keys import BUCKETS, Keys
from ..redaction import without_secrets
from .client_factory import ClientFactory, client_factory, unsupported_message
from .cluster import AsyncClusterNodes, Nodes, nodes_of
from .dedicated import aclose, dedicated

Client: TypeAlias = redis.Redis | Nodes
AsyncClient: TypeAlias = redis.asyncio.Redis | Nodes


class Server:
    """The clients and key names of one server, or of several servers that share the buckets."""

    routing_key = ""
    """A key that this server stores, if it is one of several. `RawCommands` uses it."""

    _buckets: "Container[int]" = range(BUCKETS)

    def __init__(self, alias: str, prefix: str, factory: ClientFactory) -> None:
        self.alias = alias
        self.keys = Keys(prefix, has_nodes=factory.has_nodes)
        self._factory = factory
        self._async_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = (
            WeakKeyDictionary()
        )

    # Django's has no thread lock, unlike Python 3.11's. A fork could copy it in the locked state.
    @cached_property
    def client(self) -> Any:
        """The sync client, or `Nodes`. The client of a `ClientServer` can be one of asyncio.

        Raises:
            redis.exceptions.ConnectionError: `REDISLOCK_CLIENT` connects, and that failed.
            ImproperlyConfigured: The client cannot be made.
        """
        client = nodes_of(self._factory.make())
        # A forked child can inherit a pool while another thread of its parent has locked it.
        # redis-py 8 would wait for that thread, which the child does not have.
        pid = getattr(getattr(client, "connection_pool", None), "pid", None)
        return client if pid in (None, os.getpid()) else dedicated(client)

    async def async_client(self) -> AsyncClient:
        """Return the client of the running event loop. It is closed when the loop shuts down."""
        loop = asyncio.get_running_loop()
        if loop not in self._async_clients:
            self._forget_closed_loops()
            client = nodes_of(self._factory.make_async())
            closing = self._close_with_loop(loop, client)
            self._async_clients[loop] = client, closing
            await anext(closing)
        return await _initialized(self._async_clients[loop][0])

    def _forget_closed_loops(self) -> None:
        # A client keeps a loop that was not shut down alive. Other threads can add loops while
        # this runs, so it iterates over a copy.
        for reference in self._async_clients.keyrefs():
            if (loop := reference()) and loop.is_closed():
                self._async_clients.pop(loop, None)

    async def _close_with_loop(
        self, loop: asyncio.AbstractEventLoop, client: AsyncClient
    ) -> AsyncGenerator[None, None]:
        # asyncio has no other hook for the end of a loop: a loop that shuts down closes the async
        # generators that were started on it.
        try:
            yield
        finally:
            self._async_clients.pop(loop, None)
            with suppress(Exception):
                await aclose(client)

    def part_of(self, name: str) -> int | None:
        """Return the bucket of a lock if it can fail alone, or None if there is one server."""
        return self.keys.of(name).bucket if self._factory.has_nodes else None

    def node_servers(self) -> "list[Server]":
        """Return the servers that share the buckets, or only this one."""
        if not isinstance(self.client, Nodes):
            return [self]
        buckets: dict[Any, list[int]] = {}
        for bucket in range(BUCKETS):
            client = self.client.client_for(self.keys.of_bucket(bucket)[0])
            buckets.setdefault(client, []).append(bucket)
        return [self._node_server(client, stored) for client, stored in buckets.items()]

    def _node_server(self, client: Any, buckets: list[int]) -> "Server":
        node = Server(self.alias, self.keys.prefix, self._factory._replace(make=lambda: client))
        node.routing_key = self.keys.of_bucket(buckets[0])[0]
        node._buckets = buckets
        return node

    def stores(self, name: str) -> bool:
        """Return whether the lock is on this server."""
        return self.keys.of(name).bucket in self._buckets

    @property
    def pool(self) -> Any:
        """The connection pool of the sync client. None if there is none, or no client."""
        try:
            return getattr(self.client, "connection_pool", None)
        except (ConnectionError, ImproperlyConfigured):
            return None

    @property
    def address(self) -> str | None:
        """``host:port`` or a path. None if Sentinels or a Cluster know the address."""
        return self.identity[0]

    @property
    def database(self) -> tuple[str, int] | None:
        """The address and the number of the database. None if the address is not known."""
        address, number, _prefix = self.identity
        return (address, int(number)) if address else None

    @property
    def identity(self) -> tuple[str | None, int | str, str]:
        """The address, the number of the database, and the prefix of the keys. Aliases with the
        same identity share their locks. If the address is not known, the alias replaces the
        number."""
        pool = self.pool
        if pool is None or hasattr(pool, "sentinel_manager"):
            return None, self.alias, self.keys.prefix
        options = pool.connection_kwargs
        number = int(options.get("db") or 0)
        if "path" in options:
            return str(options["path"]), number, self.keys.prefix
        host = str(options.get("host") or "localhost").replace("localhost", "127.0.0.1")
        return f"{host}:{options.get('port') or 6379}", number, self.keys.prefix


class ClientServer(Server):
    """The server of a sync or async client that its creator closes.

    The servers of two clients are equal if the clients have the same connection pool.
    """

    def __init__(self, client: Any) -> None:
        has_nodes = isinstance(nodes_of(client), Nodes)
        super().__init__("", conf.prefix, ClientFactory(lambda: client, lambda: client, has_nodes))
        self._pool = getattr(client, "connection_pool", client)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ClientServer)
            and self._pool is other._pool
            and self.keys == other.keys
        )

    def __hash__(self) -> int:
        return hash((id(self._pool), self.keys))

    async def async_client(self) -> AsyncClient:
        """Return the client.

        Raises:
            TypeError: It is not a client of ``redis.asyncio``.
        """
        client: Any = self._factory.make_async()
        if not iscoroutinefunction(client.execute_command):
            raise TypeError(
                f"Async methods need a redis.asyncio client, got {without_secrets(repr(client))}"
            )
        return await _initialized(self.client)


async def _initialized(client: AsyncClient) -> AsyncClient:
    if isinstance(client, AsyncClusterNodes):
        await client.ready()
    return client


class Servers(dict[str | None, Server]):
    """The servers by cache alias. They are made on first use, and again after the settings have
    changed. None is ``REDISLOCK_CACHE``.

    An access raises `ImproperlyConfigured` if the cache alias does not exist, or cannot store
    locks. It has no thread lock, because a fork could copy one in the locked state.
    """

    def __missing__(self, alias: str | None) -> Server:
        if alias is None:
            return self.setdefault(None, self[conf.cache])
        factory = client_factory(alias)
        if factory is None:
            raise ImproperlyConfigured(unsupported_message(alias))
        key_prefix = caches[alias].key_prefix
        prefix = f"{key_prefix}:{conf.prefix}" if key_prefix else conf.prefix
        return self.setdefault(alias, Server(alias, prefix, factory))

    def __reduce__(self) -> str:
        # A lock refers to `servers`, and must not pickle its clients.
        return "servers"


servers = Servers()


CONNECTION_SETTINGS = {
    "CACHES",
    "REDISLOCK_ASYNC_CLIENT",
    "REDISLOCK_CACHE",
    "REDISLOCK_CLIENT",
    "REDISLOCK_PREFIX",
}
"""The settings that determine the clients and the keys."""


@receiver(setting_changed)
def _forget_servers(*, setting: str, **kwargs: object) -> None:
    if setting in CONNECTION_SETTINGS:
        servers.clear()


def _forget_clients() -> None:
    # A fork can copy a thread lock of a client or a pool in the locked state.
    for server in servers.values():
        vars(server).pop("client", None)


os.register_at_fork(after_in_child=_forget_clients)
