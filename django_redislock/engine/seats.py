"""Who may sit in a blocking pop: at most half of the connections that a pool can have.

The rest is for those who release and renew: waiters must never keep the very holder that
they wait for from a connection. A waiter without a seat asks again and again instead.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from redis.exceptions import ConnectionError

STANDING = 0.1
"""Seconds between two questions of a waiter without a seat."""

_seats: WeakKeyDictionary[Any, threading.Semaphore] = WeakKeyDictionary()


@contextmanager
def seat(client: Any) -> Iterator[bool]:
    """Whether there is one, for the time of the block."""
    pool = getattr(client, "connection_pool", None)
    if pool is None:
        yield True
        return
    seats = _seats.get(pool) or _seats.setdefault(pool, threading.Semaphore(_number(pool)))
    seated = seats.acquire(blocking=False)
    try:
        yield seated
    finally:
        if seated:
            seats.release()


def is_exhausted(error: ConnectionError) -> bool:
    """Whether a pool had no connection left: not a word about the server."""
    # redis-py has an error of its own for it, but not in all of the supported releases.
    return "Too many connections" in str(error)


def _number(pool: Any) -> int:
    return int(pool.max_connections) // 2
