"""Limit how long an event loop waits for replies, with one timer for all of them.

A timer for each reply takes several percent of the processor time of an uncontended cycle.
"""

import asyncio
import math
from collections.abc import Coroutine
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
Loop: TypeAlias = asyncio.AbstractEventLoop


async def within(seconds: float | None, reply: Coroutine[Any, Any, T]) -> T:
    """Await a reply. Raise `TimeoutError` if it has not arrived within `seconds`, if given.

    If the event loop was busy when the time ended, the reply may have arrived unread. The loop
    then gets as long again as it was late, to read it.
    """
    if seconds is None:
        return await reply
    loop = asyncio.get_running_loop()
    limits = _limits.get(loop) or _new_limits(loop)
    async with asyncio.timeout(None) as timeout:
        limits.add(loop, timeout, seconds)
        try:
            return await reply
        finally:
            limits.remove(timeout)


class _TimeLimits:
    """The time limits of the replies that an event loop waits for."""

    def __init__(self) -> None:
        self._pending: dict[asyncio.Timeout, tuple[float, float]] = {}
        self._next_check = math.inf

    def add(self, loop: Loop, timeout: asyncio.Timeout, seconds: float) -> None:
        due = loop.time() + seconds
        self._pending[timeout] = due, seconds
        self._check_at(loop, due)

    def remove(self, timeout: asyncio.Timeout) -> None:
        # The timer stays, for the next reply: to cancel it would cost as much as to make another.
        self._pending.pop(timeout, None)

    def _check_at(self, loop: Loop, due: float) -> None:
        if due < self._next_check:
            self._next_check = due
            loop.call_at(due, self._check, loop, due)

    def _check(self, loop: Loop, at: float) -> None:
        if at != self._next_check:  # an earlier timer replaced this one
            return
        self._next_check, now = math.inf, loop.time()
        for timeout, (due, seconds) in list(self._pending.items()):
            if due <= now:
                self.remove(timeout)
                timeout.reschedule(now + min(now - due, seconds))
        if self._pending:
            self._check_at(loop, min(due for due, _ in self._pending.values()))


def _new_limits(loop: Loop) -> _TimeLimits:
    for reference in _limits.keyrefs():  # a copy, because other threads add their loops
        if (other := reference()) and other.is_closed():
            _limits.pop(other, None)  # what still waited on it would keep it alive
    return _limits.setdefault(loop, _TimeLimits())


_limits: WeakKeyDictionary[Loop, _TimeLimits] = WeakKeyDictionary()
