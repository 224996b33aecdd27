"""The locks that are measured, and the least that a lock with a lease needs.

All use redis-py with the options of Django's `RedisCache`, and their own keys. Ours has at most
`MAX_CONNECTIONS` connections; the others have as many as they ask for.
"""

import uuid
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import redis

OURS = "django-redislock"
REDIS_PY = "redis-py"
PYTHON_REDIS_LOCK = "python-redis-lock"
RENEWED = "python-redis-lock, auto_renewal"
POTTERY = "pottery"
BARE = "baseline (SET + EVALSHA)"

LEASE = 30  # seconds, of all locks

MAX_CONNECTIONS = 50

COMPARED = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end"


class Bare:
    """The minimum that a lock with a lease needs."""

    def __init__(self, client: redis.Redis, name: str, lease: int) -> None:
        self._client = client
        self._name = name
        self._lease = lease
        self._token = uuid.uuid4().hex
        self._script = client.script_load(COMPARED)

    def acquire(self) -> None:
        self._client.set(self._name, self._token, nx=True, px=self._lease * 1000)

    def release(self) -> None:
        self._client.evalsha(self._script, 1, self._name, self._token)


def python_redis_lock(
    client: redis.Redis, name: str, lease: int = LEASE, *, renewal: bool = True
) -> Any:
    from redis_lock import Lock

    return Lock(client, name, expire=lease, auto_renewal=renewal)


def pottery(client: redis.Redis, name: str, lease: int = LEASE) -> Any:
    from pottery import Redlock

    return Redlock(key=name, masters={client}, auto_release_time=lease)


MAKERS: dict[str, Callable[[redis.Redis, str, int], Any]] = {
    REDIS_PY: lambda client, name, lease: client.lock(name, timeout=lease),
    PYTHON_REDIS_LOCK: partial(python_redis_lock, renewal=False),
    RENEWED: python_redis_lock,
    POTTERY: pottery,
    BARE: Bare,
}

PEERS = [REDIS_PY]
if find_spec("redis_lock"):  # only `make bench` and `make peers` install it
    PEERS += [PYTHON_REDIS_LOCK, RENEWED]


def contender(
    label: str, url: str, name: str, alias: str | None = None, lease: int = LEASE
) -> Any:
    """Return a lock of the contender `label`. Ours is a lock of the cache alias, which may use
    another server than the others."""
    if label == OURS:
        return ours_at(alias or None, f"{label}:{name}", lease)
    return MAKERS[label](client_of(url), f"{label}:{name}", lease)


def ours_at(alias: str | None, name: str, lease: int = LEASE) -> Any:
    from django_redislock import locks

    return locks.using(alias).lock(name, timeout=lease)


@cache
def client_of(url: str) -> redis.Redis:
    """Return the client of this process for all locks except ours, which use the cache's client.

    python-redis-lock waits in one pop for as long as a lease, but a client times out after 5
    seconds by default. Its 500 threads also renew at the same time, and a client has only 100
    connections by default.
    """
    return redis.Redis.from_url(url, socket_timeout=LEASE * 2, max_connections=1000)
