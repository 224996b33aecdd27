"""How the users of each package make a lock, and ask whether it is still theirs."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import redis
from redis.connection import parse_url

from django_redislock.lua import ACQUIRE, RELEASE
from tests.faults.proxy import Command, named, runs

Matches = Callable[[Command], bool]

ASK_ONCE = "PEERS_ASK_ONCE"  # the variable of a process whose clients do not ask again

SETS = named("SET")
CALLS_A_SCRIPT = named("EVALSHA", "EVAL")


@dataclass(frozen=True)
class Make:
    label: str
    # A lock of this name, with a lease of so many seconds, renewed if the package does that.
    lock: Callable[[str, int], Any]
    is_mine: Callable[[Any], bool]  # by what the package has for that
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


def _python_redis_lock(name: str, lease: int) -> Any:
    from redis_lock import Lock

    return Lock(_client(), name, expire=lease, auto_renewal=True)


def _pottery(name: str, lease: int) -> Any:
    from pottery import Redlock

    return Redlock(key=name, masters={_client()}, auto_release_time=lease)


def _is_owned(lock: Any) -> bool:
    return bool(lock.owned())


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
    "cache_lock": Make("`cache.lock` (django-redis)", _cache_lock, _is_owned, "`owned()`"),
    "redis_py": Make(
        "redis-py",
        lambda name, lease: _client().lock(name, timeout=lease),
        _is_owned,
        "`owned()`",
    ),
    "python_redis_lock": Make(
        "python-redis-lock",
        _python_redis_lock,
        lambda lock: lock.get_owner_id() == lock.id,
        "`get_owner_id()`",
    ),
    "pottery": Make("pottery", _pottery, lambda lock: bool(lock.locked()), "`locked()`"),
}
