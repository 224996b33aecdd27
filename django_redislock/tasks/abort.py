"""Interrupts a task that has lost its lock, like a soft time limit interrupts a slow task."""

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from django_redislock.exceptions import LOSS, LockLost

SIGNAL = signal.SIGUSR1
"""Celery's soft time limit uses this signal, too. Each handler passes on the other's signals."""

MAX_SIGNAL_SECONDS = 1.0
"""The time for a signal to arrive, unless the function has set a handler of its own."""


class Abort:
    """Raises `LockLost` in a function after it was called, in the main thread of its process.

    Another thread cannot be interrupted, and must check its lock.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._is_armed = False
        self._pending: LockLost | None = None
        """The error that the signal raises when it arrives."""

    def __call__(self, lock: Any) -> None:
        """Report that the lock is lost, as `on_lost`."""
        with self._guard:
            if self._is_armed:
                self._pending = LockLost(
                    f"Lock {lock.name!r} was lost while this task was running ({LOSS}). Another"
                    " holder may be running.",
                    lock_name=lock.name,
                )
                signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)

    def run(self, lock: Any, function: Callable[[], Any]) -> Any:
        """Run a function under a lock, and raise `LockLost` in it if the lock is lost."""
        if threading.current_thread() is not threading.main_thread():
            return function()
        self._before = signal.signal(SIGNAL, self._raise_pending)
        try:
            with self._guard:
                self._is_armed = True
            lock.assert_held()  # a loss before this line was not reported
            result = function()
        finally:
            try:
                with self._guard:
                    self._is_armed = False
                until = time.monotonic() + MAX_SIGNAL_SECONDS
                while self._pending and time.monotonic() < until:
                    time.sleep(0.001)  # it must not interrupt the code after the function
            finally:
                signal.signal(SIGNAL, self._before)
        if self._pending:  # another handler received the signal
            raise self._pending
        return result

    def _raise_pending(self, number: int, frame: FrameType | None) -> None:
        error, self._pending = self._pending, None
        if error:
            raise error
        if callable(self._before):
            self._before(number, frame)
