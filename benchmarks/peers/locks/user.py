"""How the users of each package make a lock, and ask whether it is still theirs; and what a
process with such locks does: functions that it is asked for by their paths. It answers with what
came of it (an error by its name), and when that was.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from operator import methodcaller
from typing import Any

import redis
from redis.connection import parse_url

from django_redislock.lua import ACQUIRE, RELEASE
from tests.faults.client import Client
from tests.faults.events import Attempts
from tests.faults.proxy import Command, named, runs

from ...bench.contenders import pottery, python_redis_lock

Matches = Callable[[Command], bool]

ASK_ONCE = "PEERS_ASK_ONCE"  # the variable of a process whose clients do not ask again

SETS = named("SET")
CALLS_A_SCRIPT = named("EVALSHA", "EVAL")


@dataclass(frozen=True)
class Make:
    label: str
    # A lock of this name, with a lease of so many seconds, renewed if the package does that.
    lock: Callable[[str, int], Any]
    is_mine: Callable[[Any], object]  # by what the package has for that
    asked_by: str  # how that is written
    # Whether it has told of the loss by itself, if it ever does.
    tells: Callable[[Any], bool] | None = None
    acquires: Matches = SETS
    releases: Matches = CALLS_A_SCRIPT


def _ours(name: str, lease: int) -> Any:
    from django_redislock import locks

    return locks.lock(name, timeout=lease)


def _cache_lock(name: str, lease: int) -> Any:
    from django.core.cache import caches

    return caches["django_redis"].lock(name, timeout=lease)


@cache
def _client() -> redis.Redis:
    """With redis-py's defaults. From 6 on it asks again where an answer is lost, and one that is
    made by `from_url` asks once, as those of Django's caches do."""
    if ASK_ONCE in os.environ:
        return redis.Redis.from_url(os.environ["REDIS_URL"])
    return redis.Redis(**parse_url(os.environ["REDIS_URL"]))


MAKES = {
    "django_redislock": Make(
        "django-redislock",
        _ours,
        lambda lock: not lock.lost,
        "`lost`",
        tells=lambda lock: lock.lost,
        acquires=runs(ACQUIRE),
        releases=runs(RELEASE),
    ),
    "cache_lock": Make(
        "`cache.lock` (django-redis)", _cache_lock, methodcaller("owned"), "`owned()`"
    ),
    "redis_py": Make(
        "redis-py",
        lambda name, lease: _client().lock(name, timeout=lease),
        methodcaller("owned"),
        "`owned()`",
    ),
    "python_redis_lock": Make(
        "python-redis-lock",
        lambda name, lease: python_redis_lock(_client(), name, lease),
        lambda lock: lock.get_owner_id() == lock.id,
        "`get_owner_id()`",
    ),
    "pottery": Make(
        "pottery",
        lambda name, lease: pottery(_client(), name, lease),
        methodcaller("locked"),
        "`locked()`",
    ),
}


TURN = 0.05  # seconds for which a turn takes


class Locks:
    def __init__(self, client: Client, make: str, lease: int, url: str) -> None:
        self._make, self._folder, self._url = MAKES[make], client.folder, url
        self._lock = cache(lambda name: self._make.lock(name, lease))
        self._fences: dict[str, int] = {}

    def acquire(self, name: str, blocking: bool = True) -> bool:
        """Wait for as long as it takes, or ask once."""
        acquired: bool = self._lock(name).acquire(**{} if blocking else {"blocking": False})
        self._fences[name] = getattr(self._lock(name), "fence_token", None) or 0
        return acquired

    def attempt(self, name: str) -> bool:
        return self.acquire(name, blocking=False)

    def release(self, name: str) -> str:
        self._lock(name).release()
        return "released"

    def is_mine(self, name: str) -> bool:
        return bool(self._make.is_mine(self._lock(name)))

    def tells(self, name: str) -> bool:
        assert self._make.tells
        return self._make.tells(self._lock(name))

    def turn(self, name: str) -> float:
        """Wait, hold it for a moment, let go: when it was held."""
        self.acquire(name)
        held = time.monotonic()
        time.sleep(TURN)
        self.release(name)
        return held

    def turn_again(self, name: str) -> float:
        """Let go of it and ask again at once."""
        self.release(name)
        return self.turn(name)

    def write(self, name: str) -> bool:
        """Write what the lock guards, with the fencing token if it gives one: whether that was
        taken."""
        with closing(Attempts(self._folder, name)) as register:
            return register.write(self._make.label, self._fences[name])

    def clear(self, database: int) -> bool:
        """`clear()` of a cache in that database of the server."""
        from django.core.cache.backends.redis import RedisCache

        return RedisCache(self._url.replace("/0", f"/{database}"), {}).clear()


_locks: list[Locks] = []


def be(client: Client, make: str, lease: int, url: str, asks_once: bool) -> None:
    os.environ |= {"REDIS_URL": url} | ({ASK_ONCE: "1"} if asks_once else {})
    logging.disable()  # whatever happens here is meant
    threading.excepthook = lambda args: None  # so is that a package's thread dies
    _locks.append(Locks(client, make, lease, url))


def do(client: Client, deed: str, args: Sequence[Any]) -> tuple[str, float]:
    try:
        said = str(getattr(_locks[0], deed)(*args))
    except Exception as error:
        said = type(error).__name__
    return said, time.monotonic()
