"""Leaks for a soak to find: each is called with every lock that a lasting client comes to hold."""

from typing import Any
from uuid import uuid4

from django_redislock.connection import server

_kept: list[Any] = []


def keep(lock: Any) -> None:
    """The client keeps each lock object."""
    _kept.append(lock)


def leave_a_key(lock: Any) -> None:
    """A key is never deleted."""
    here = server("default")
    here.client.set(f"{here.keys.of('a').grants}{uuid4().hex}", "forgotten")


def keep_a_connection(lock: Any) -> None:
    """One in ten has a connection that is not given back."""
    _kept.append(server("default").client.client() if len(_kept) % 10 == 0 else None)
