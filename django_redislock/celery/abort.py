"""Stopping a task whose lock is lost, as a soft time limit stops one that takes too long."""

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

from django_redislock.exceptions import LOSS, LockLost

SIGNAL = signal.SIGUSR1
"""Celery's soft time limit comes by it, too. Each takes only what is meant for it."""

COMES_WITHIN = 1.0
"""Seconds, unless the function gave the signal to a handler of its own."""


class Abort:
    """Raises `LockLost` in the block, in the main thread of its process, once it was called.

    Elsewhere a thread can't be interrupted, and has to look at its lock.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._armed = self._sent = self._struck = False
        self._name = ""

    def __call__(self, lock: Any) -> None:
        """The lock is lost; for `on_lost`."""
        with self._guard:
            self._name = lock.name
            if self._armed:
                self._sent = True
                signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)

    def __enter__(self) -> Self:
        """Whose lock is lost already has to find that itself: it is `lost` before this is told."""
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(SIGNAL, self._strike)
            with self._guard:
                self._armed = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._armed:
            return
        try:
            with self._guard:
                self._armed = False
            until = time.monotonic() + COMES_WITHIN
            while self._is_under_way and time.monotonic() < until:
                time.sleep(0.001)  # it must not strike whatever comes next
        finally:
            signal.signal(SIGNAL, self._before)
        if self._is_under_way and error is None:  # another handler took it
            raise self._error()

    @property
    def _is_under_way(self) -> bool:
        return self._sent and not self._struck

    def _strike(self, number: int, frame: FrameType | None) -> None:
        if self._is_under_way:
            self._struck = True
            raise self._error()
        if callable(self._before):
            self._before(number, frame)

    def _error(self) -> LockLost:
        return LockLost(
            f"Lock {self._name!r} was lost while this task was running ({LOSS}). Another holder "
            "may be running.",
            lock_name=self._name,
        )
