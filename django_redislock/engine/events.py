"""An event that survives exceptions of signal handlers."""

import threading
from contextlib import suppress


class InterruptSafeEvent:
    """An event for one waiter.

    If a signal handler raises an exception while a `threading.Event` is used, the event's lock may
    stay acquired. Here each step is a single call in C.
    """

    def __init__(self) -> None:
        self._unset = threading.Lock()
        self.clear()

    def set(self) -> None:
        with suppress(RuntimeError):  # it was set already
            self._unset.release()

    def is_set(self) -> bool:
        return not self._unset.locked()

    def clear(self) -> None:
        self._unset.acquire(blocking=False)

    def wait(self, seconds: float) -> bool:
        """Return whether the event was set in time, and clear it."""
        return self._unset.acquire(timeout=seconds)
