"""What a client of any release can be asked to tell of a lock, and to do to it."""

from dataclasses import asdict
from datetime import datetime
from typing import Any

import django_redislock
from django_redislock.info import Holder

from .client import Client

INFO = "name", "kind", "capacity", "state", "waiters"
HOLDING = "token", "fence_token", "weight", "timeout", "waited", "acquired_at"
WAITING = "since", "weight", "timeout"
PAST = "name", "kind", "outcome", "at", "acquired_at", "held", "fence_token", "weight"
ABOUT = "holder", "metadata"  # what all releases tell, but for what changes while one looks


def made_of(client: Client) -> str:
    """Where its package is."""
    return str(django_redislock.__file__)


def look(client: Client, lock: str) -> dict[str, Any]:
    """Who holds it and who waits, and who held it before."""
    from django_redislock import locks

    info = locks.get(lock)
    return {
        "listed": [each.name for each in locks.active(lock)],
        "info": info and _told(info, *INFO),
        "holders": [_told(each, *HOLDING, *ABOUT) for each in info.holders] if info else [],
        "queue": [_told(each, *WAITING, *ABOUT) for each in locks.queue(lock)],
        "past": [_told(each, *PAST, *ABOUT) for each in locks.history(lock)],
    }


def force(client: Client, lock: str, token: str) -> int:
    from django_redislock import locks

    return locks.force_release(lock, token)


def _told(facts: object, *names: str) -> dict[str, Any]:
    return {name: _plain(getattr(facts, name)) for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Holder):
        # The previous release does not know the process.
        return {name: each for name, each in asdict(value).items() if name != "process"}
    return value
