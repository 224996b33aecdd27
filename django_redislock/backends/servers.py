"""The server that stores the locks of a cache alias in the settings, or of a client."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import suppress
from inspect import iscoroutinefunction
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import redis.asyncio
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import receiver
from redis.exceptions import ConnectionError

from ..conf import conf
from ..keys import Keys
from ..redaction import without_secrets
from .client_factory import (
    ClientFactory,
    client_factory,
    keys_of_alias,
    unsupported_message,
)
from .cluster import AsyncSlotOwner, SlotOwner, slot_owner

Client: TypeAlias = redis.Redis | SlotOwner
AsyncClient: TypeAlias = redis.asyncio.Redis | AsyncSlotOwner


class Server:
    """The clients and key names of one server, or of one slot of a Cluster."""

    def __init__(self, alias: str, keys: Keys, factory: ClientFactory) -> None:
        self.alias = alias
        self.keys = keys
        self._factory = factory
        self._async_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = (
            WeakKeyDictionary()
        )

    @property
    def client(self) -> Any:
        """The sync client, or `SlotOwner`. That of a `ClientServer` can be one of asyncio.

        Raises:
            redis.exceptions.ConnectionError: `REDISLOCK_CLIENT` connects, and that failed.
            ImproperlyConfigured: The client cannot be made.
        """
        client = vars(self).get("_client")
        if client is None:
            # Threads that ask at the same time get the same client, or each would open connections
            # of its own. A fork could copy a thread lock in the locked state.
            made = slot_owner(self._factory.make(), self.keys.index)
            client = vars(self).setdefault("_client", made)
        return client

    async def async_client(self) -> AsyncClient:
        """Return the client of the running event loop. It is closed when the loop shuts down."""
        loop = asyncio.get_running_loop()
        if loop not in self._async_clients:
            self._forget_closed_loops()
            client = slot_owner(self._factory.make_async(), self.keys.index)
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
                await _aclose(client)

    @property
    def pool(self) -> Any:
        """The connection pool of the sync client. None if there is none, or no client."""
        try:
            client = self.client.node() if isinstance(self.client, SlotOwner) else self.client
            return getattr(client, "connection_pool", None)
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
        unknown = None, self.alias, self.keys.prefix
        try:
            if isinstance(self.client, SlotOwner):
                return unknown
        except (ConnectionError, ImproperlyConfigured):
            return unknown
        pool = self.pool
        if pool is None or hasattr(pool, "sentinel_manager"):
            return unknown
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
        super().__init__("", Keys(conf.prefix), ClientFactory(lambda: client, lambda: client))
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
    if isinstance(client, AsyncSlotOwner):
        await client.ready()
    return client


async def _aclose(client: AsyncClient) -> None:
    """Close the pools of an async client, and of its Sentinels."""
    if isinstance(client, AsyncSlotOwner):
        await client.aclose()
        return
    sentinels = getattr(client.connection_pool, "sentinel_manager", None)
    for each in [client, *(sentinels.sentinels if sentinels else ())]:
        with suppress(Exception):
            await each.connection_pool.disconnect()


class ServersByAlias(dict[str | None, Server]):
    """The servers by cache alias. They are made on first use, and again after the settings have
    changed. None is ``REDISLOCK_CACHE``.

    An access raises `ImproperlyConfigured` if the cache alias does not exist, or cannot store
    locks. It has no thread lock, because a fork could copy one in the locked state.
    """

    def __missing__(self, alias: str | None) -> Server:
        if alias is None:
            return self.setdefault(None, self[conf.cache])
        keys = keys_of_alias(alias)
        factory = client_factory(alias, keys)
        if factory is None:
            raise ImproperlyConfigured(unsupported_message(alias))
        return self.setdefault(alias, Server(alias, keys, factory))

    def __reduce__(self) -> str:
        # A lock refers to `servers`, and must not pickle its clients.
        return "servers"


servers = ServersByAlias()


CONNECTION_SETTINGS = {
    "CACHES",
    "REDISLOCK_ASYNC_CLIENT",
    "REDISLOCK_CACHE",
    "REDISLOCK_CLIENT",
    "REDISLOCK_MAX_CONNECTIONS",
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
        vars(server).pop("_client", None)


os.register_at_fork(after_in_child=_forget_clients)
