"""Wait for what several servers are to agree upon."""

from collections.abc import Callable
from typing import TypeVar

import redis

from tests.tools import wait_until

T = TypeVar("T")

WITHIN = 60
"""Seconds."""


def wait_for(predicate: Callable[[], T], *, timeout: float = WITHIN) -> T:
    """`wait_until`; a server that doesn't answer, or closes connections, has not agreed yet."""
    return wait_until(lambda: _answer(predicate), timeout=timeout, interval=0.02)


def _answer(predicate: Callable[[], T]) -> T | None:
    try:
        return predicate()
    except (redis.ConnectionError, redis.TimeoutError):
        return None
