"""Let a few calls at a time use a connection pool.

Hundreds of threads, or thousands of tasks, can call at the same time. Redis executes their
commands one after the other, so more connections would only take those that the rest of the
program needs.
"""

import asyncio
import math
import os
import random
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

from redis.exceptions import TimeoutError as RedisTimeoutError

MAX_THREAD_CALLS = 8
"""Calls of threads that use a pool at the same time, but at most half of its connections."""

MAX_TASK_CALLS = 2
"""Calls of one event loop that use a pool at the same time."""

SLOT_WAIT_SECONDS = 0.02
"""Seconds to wait for one slot, before another one may have become free."""

thread_slots: WeakKeyDictionary[Any, list[threading.Lock]] = WeakKeyDictionary()
"""The slots of connection pools for the calls of threads."""


def new_slots(pool: Any) -> list[threading.Lock]:
    """Return the slots of a pool. A call acquires one of them, and then releases it.

    They are not a semaphore: an interrupt in its code could block all later calls.
    """
    count = max(1, min(MAX_THREAD_CALLS, pool.max_connections // 2))
    return thread_slots.setdefault(pool, [threading.Lock() for _ in range(count)])


def slots_to_try(
    slots: list[threading.Lock], seconds: float
) -> Iterator[tuple[threading.Lock, float]]:
    """Yield slots, each with how long to wait for it, until one is acquired or time is up.

    The caller acquires it, because an interrupt on the way to the caller would keep the slot.
    After `seconds` the last slot counts as the caller's. A slow call has it, too.
    """
    give_up = time.monotonic() + seconds
    while True:
        for slot in slots:
            yield slot, 0
        yield random.choice(slots), SLOT_WAIT_SECONDS  # noqa: S311  no secret
        if time.monotonic() > give_up:
            return


class LoopGate:
    """The slots of the tasks of an event loop, in order of arrival.

    An urgent call, such as a release, comes first: the others may wait for its lock.
    """

    def __init__(self, max_connections: int) -> None:
        self._free = min(MAX_TASK_CALLS, max_connections)
        self._urgent: deque[asyncio.Future[None]] = deque()
        self._others: deque[asyncio.Future[None]] = deque()
        self._last_end = -math.inf

    async def enter(self, limit: float | None, *, is_urgent: bool) -> None:
        """Wait for a slot. Give it back by `leave()`.

        Args:
            limit: Seconds that Redis has to reply to a call. If no call has ended for this time,
                `RedisTimeoutError` is raised.
            is_urgent: Whether to come before the calls that are not.
        """
        if self._free:
            self._free -= 1
            return
        loop = asyncio.get_running_loop()
        slot, began = loop.create_future(), time.monotonic()
        (self._urgent if is_urgent else self._others).append(slot)
        try:
            while not slot.done():
                left = None
                if limit is not None:
                    left = max(began, self._last_end) + limit - time.monotonic()
                    if left <= 0:
                        raise RedisTimeoutError("Redis did not respond in time")
                await asyncio.wait([slot], timeout=left)
        except BaseException:
            if slot.done():
                self.leave()
            slot.cancel()
            raise

    def leave(self, *, has_reply: bool = False) -> None:
        """Give a slot to the next call."""
        if has_reply:
            self._last_end = time.monotonic()
        for queue in (self._urgent, self._others):
            while queue:
                if not (slot := queue.popleft()).done():
                    slot.set_result(None)
                    return
        self._free += 1


loop_gates: WeakKeyDictionary[Any, LoopGate] = WeakKeyDictionary()
"""The gates of connection pools for the calls of tasks."""

os.register_at_fork(after_in_child=thread_slots.clear)
os.register_at_fork(after_in_child=loop_gates.clear)
