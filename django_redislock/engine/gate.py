"""Let a few calls at a time use a connection pool, in order of arrival.

Thousands of tasks, or hundreds of threads, can call at the same time. Redis executes their
commands one after the other, and more connections would only take those that the rest of the
program needs. An urgent call, such as a release, comes first: the others may wait for its lock.
"""

import asyncio
import math
import os
import time
from collections import deque
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from redis.exceptions import TimeoutError as RedisTimeoutError

from .events import InterruptSafeEvent

MAX_THREAD_CALLS = 8
"""Calls of threads that use a pool at the same time, but at most half of its connections."""

MAX_TASK_CALLS = 2
"""Calls of one event loop that use a pool at the same time."""

STUCK_SECONDS = 1.0
"""A thread stops waiting for a slot if no other call has ended for this time: an interrupt may
have kept one from giving its slot back."""


class ThreadGate:
    """The slots of threads. It has no lock, which an interrupt could leave locked.

    To use it, pop a slot, or `wait()` for one. Then append a slot, and `wake()` the next call if
    one waits.
    """

    def __init__(self, max_connections: int) -> None:
        size = max(1, min(MAX_THREAD_CALLS, max_connections // 2))
        self.slots: deque[None] = deque([None] * size, maxlen=size)
        self.waiting = False
        self._urgent: deque[InterruptSafeEvent] = deque()
        self._others: deque[InterruptSafeEvent] = deque()
        self._last_end = -math.inf

    def wait(self, *, is_urgent: bool) -> None:
        """Wait for a slot, and take it."""
        queue = self._urgent if is_urgent else self._others
        began = time.monotonic()
        event = InterruptSafeEvent()
        queue.append(event)
        self.waiting = True
        while not self._take():
            if event.wait(STUCK_SECONDS):
                if not self._take():  # another call came first
                    queue.appendleft(event)
                    self.waiting = True
                    continue
                return
            if time.monotonic() > max(self._last_end, began) + STUCK_SECONDS:
                break
        with suppress(ValueError):  # it was woken in the meantime
            queue.remove(event)

    def _take(self) -> bool:
        try:
            self.slots.popleft()
        except IndexError:
            return False
        return True

    def wake(self) -> None:
        """Wake the next call."""
        self._last_end = time.monotonic()
        for queue in (self._urgent, self._others):
            with suppress(IndexError):
                queue.popleft().set()
                return
        self.waiting = False


class LoopGate:
    """The slots of the tasks of an event loop."""

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


thread_gates: WeakKeyDictionary[Any, ThreadGate] = WeakKeyDictionary()
"""The gates of connection pools."""

loop_gates: WeakKeyDictionary[Any, LoopGate] = WeakKeyDictionary()

os.register_at_fork(after_in_child=thread_gates.clear)
os.register_at_fork(after_in_child=loop_gates.clear)
