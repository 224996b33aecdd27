"""How to make a lock of each package. Also the orders of a process with such locks, which are
functions that are called by path. The answer is the result (or the name of an error) and its time.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Any

import redis
from redis.connection import parse_url

from django_redislock.lua import ACQUIRE
from tests.faults.client import Client
from tests.faults.events import Attempts
from tests.faults.proxy import Command, named, runs

from ...bench.contenders import pottery, python_redis_lock

Matches = Callable[[Command], bool]

ASK_ONCE = "PEERS_ASK_ONCE"  # environment variable that disables retries

SETS = named("SET")


@dataclass(frozen=True)
class Make:
    label: str
    # Makes a lock from a name and a lease in seconds, which is renewed if the package can do it.
    lock: Callable[[str, int], Any]
    acquires: Matches = SETS


def _ours(name: str, lease: int) -> Any:
    from django_redislock import locks

    return locks.lock(name, timeout=lease)


def _cache_lock(name: str, lease: int) -> Any:
    from django.core.cache import caches

    return caches["django_redis"].lock(name, timeout=lease)


@cache
def _client() -> redis.Redis:
    """Return a client with redis-py's defaults. Since redis-py 6, it retries if a reply is lost. A
    client that is made by `from_url` does not retry, as in Django's caches."""
    if ASK_ONCE in os.environ:
        return redis.Redis.from_url(os.environ["REDIS_URL"])
    return redis.Redis(**parse_url(os.environ["REDIS_URL"]))


MAKES = {
    "django_redislock": Make("django-redislock", _ours, runs(ACQUIRE)),
    "cache_lock": Make("`cache.lock` (django-redis)", _cache_lock),
    "redis_py": Make("redis-py", lambda name, lease: _client().lock(name, timeout=lease)),
    "python_redis_lock": Make(
        "python-redis-lock", lambda name, lease: python_redis_lock(_client(), name, lease)
    ),
    "pottery": Make("pottery", lambda name, lease: pottery(_client(), name, lease)),
}


TURN = 0.05  # length of a turn in seconds


class Locks:
    def __init__(self, client: Client, make: str, lease: int) -> None:
        self._make, self._folder = MAKES[make], client.folder
        self._lock = cache(lambda name: self._make.lock(name, lease))
        self._fences: dict[str, int] = {}

    def acquire(self, name: str, blocking: bool = True) -> bool:
        """Acquire the lock, by default after a wait."""
        acquired: bool = self._lock(name).acquire(**{} if blocking else {"blocking": False})
        self._fences[name] = getattr(self._lock(name), "fence_token", None) or 0
        return acquired

    def attempt(self, name: str) -> bool:
        return self.acquire(name, blocking=False)

    def release(self, name: str) -> str:
        self._lock(name).release()
        return "released"

    def turn(self, name: str) -> float:
        """Acquire the lock, hold it briefly and release it. Return the time of acquisition."""
        self.acquire(name)
        held = time.monotonic()
        time.sleep(TURN)
        self.release(name)
        return held

    def turn_again(self, name: str) -> float:
        """Release the lock and request it again at once."""
        self.release(name)
        return self.turn(name)

    def write(self, name: str) -> bool:
        """Write to the protected register, with a fencing token if the package has one. Return
        whether the register accepted the write."""
        with closing(Attempts(self._folder, name)) as register:
            return register.write(self._make.label, self._fences[name])


_locks: list[Locks] = []


def be(client: Client, make: str, lease: int, url: str, asks_once: bool) -> None:
    os.environ |= {"REDIS_URL": url} | ({ASK_ONCE: "1"} if asks_once else {})
    logging.disable()  # all errors are intended
    threading.excepthook = lambda args: None  # as are errors in a package's threads
    _locks.append(Locks(client, make, lease))


def do(client: Client, method: str, args: Sequence[Any]) -> tuple[str, float]:
    try:
        said = str(getattr(_locks[0], method)(*args))
    except Exception as error:
        said = type(error).__name__
    return said, time.monotonic()
