"""The locks that are measured, and their lower bounds.

All use a redis-py client with the same options, and their own keys.
"""

import time
import uuid
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import redis

from django_redislock.engine.transport import call

OURS = "django-redislock"
REDIS_PY = "redis-py"
PYTHON_REDIS_LOCK = "python-redis-lock"
POTTERY = "pottery"
BARE = "baseline (SET + EVALSHA)"
SAME = "our commands, no logic"
SENT = "lower bound (our commands)"
PINGS = "two PINGs"
LIST = "baseline (LPUSH + BLPOP)"

LEASE = 30  # seconds, of all locks

COMPARED = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end"

TAKEN = """
local time = redis.call('TIME')
redis.call('EXISTS', KEYS[1], KEYS[2])
redis.call('ZADD', KEYS[3], 'GT', 'CH', ARGV[2], ARGV[1], time[1], '')
redis.call('HSET', KEYS[1], 'kind', 'mutex', 'capacity', '1', 'used', '1', 'soonest', ARGV[2],
  'latest', ARGV[2], 'h:' .. ARGV[1], ARGV[3])
redis.call('PEXPIREAT', KEYS[1], ARGV[2])
redis.call('HINCRBY', KEYS[4], '1 acquired', 1)
return tonumber(time[1])
"""

LEFT = """
redis.call('TIME')
redis.call('EXISTS', KEYS[2])
redis.call('HMGET', KEYS[1], 'kind', 'used', 'h:' .. ARGV[1])
redis.call('XADD', KEYS[5], 'MAXLEN', '~', '10000', '*', 'name', ARGV[1], 'kind', 'mutex',
  'token', ARGV[1], 'how', 'released', 'at', ARGV[2], 'holder', ARGV[3])
redis.call('DEL', KEYS[1], KEYS[6])
redis.call('ZREM', KEYS[3], ARGV[1])
return 1
"""


class Bare:
    """The minimum that a lock with a lease needs."""

    def __init__(self, client: redis.Redis, name: str) -> None:
        self._client, self._name, self._token = client, name, uuid.uuid4().hex
        self._script = client.script_load(COMPARED)

    def acquire(self) -> None:
        self._client.set(self._name, self._token, nx=True, px=LEASE * 1000)

    def release(self) -> None:
        self._client.evalsha(self._script, 1, self._name, self._token)


class Same:
    """The minimum for the data that our locks store: the same commands, without conditions."""

    def __init__(self, client: redis.Redis, name: str) -> None:
        self._client = client
        self._taken, self._left = map(client.script_load, (TAKEN, LEFT))
        kinds = ("lock", "queue", "index", "rates", "ended", "grant")
        until = int(time.time() + 3600) * 1000
        holder = "1 1795339195277 1795339195277976 1795339195277 0 60000 " + "i" * 150
        self._args = 6, *(f"{name}:{kind}" for kind in kinds), uuid.uuid4().hex, until, holder

    def acquire(self) -> None:
        self._client.evalsha(self._taken, *self._args)

    def release(self) -> None:
        self._client.evalsha(self._left, *self._args)


class Sent(Same):
    """The same, on a connection that is used as our locks do, without most of redis-py."""

    def acquire(self) -> None:
        self._ask(self._taken)

    def release(self) -> None:
        self._ask(self._left)

    def _ask(self, script: str) -> None:
        call(self._client, [("EVALSHA", script, *self._args)])


class Pings:
    """The minimum for two round trips."""

    def __init__(self, client: redis.Redis, name: str) -> None:
        self.acquire = self.release = client.ping


class List:
    """A lock that is an entry of a list. The holder pushes it for the next holder."""

    def __init__(self, client: redis.Redis, name: str) -> None:
        self.acquire = partial(client.blpop, [name])
        self.release = partial(client.lpush, name, 1)


def python_redis_lock(client: redis.Redis, name: str, lease: int = LEASE) -> Any:
    from redis_lock import Lock

    return Lock(client, name, expire=lease, auto_renewal=True)


def pottery(client: redis.Redis, name: str, lease: int = LEASE) -> Any:
    from pottery import Redlock

    return Redlock(key=name, masters={client}, auto_release_time=lease)


MAKERS: dict[str, Callable[[redis.Redis, str], Any]] = {
    REDIS_PY: lambda client, name: client.lock(name, timeout=LEASE),
    PYTHON_REDIS_LOCK: python_redis_lock,
    POTTERY: pottery,
    BARE: Bare,
    SAME: Same,
    SENT: Sent,
    PINGS: Pings,
    LIST: List,
}

PEERS = (REDIS_PY, PYTHON_REDIS_LOCK, POTTERY)


def contender(label: str, url: str, name: str, alias: str | None = None) -> Any:
    """Return a lock of the contender `label`. Ours may use another server than the others."""
    if label == OURS:
        return ours_at(alias or None, f"{label}:{name}")
    return MAKERS[label](client_of(url), f"{label}:{name}")


def ours_at(alias: str | None, name: str) -> Any:
    from django_redislock import locks

    return locks.using(alias).lock(name)


@cache
def client_of(url: str) -> redis.Redis:
    """Return the client of this process for all locks except ours, which use the cache's client.

    python-redis-lock waits in one pop for as long as a lease, but a client times out after 5
    seconds by default. Its 500 threads also renew at the same time, and a client has only 100
    connections by default.
    """
    return redis.Redis.from_url(url, socket_timeout=LEASE * 2, max_connections=1000)
