"""Delay a fork while a thread of this package uses a connection pool.

The child would inherit the lock of the pool as the thread holds it, and has no thread to release
it. redis-py 8 waits for that lock when it resets a pool in the child.
"""

import os
import threading
import time

MAX_DELAY_SECONDS = 2.0
"""Seconds that a fork waits, because Redis may not respond, and seconds that it may last."""

POLL_INTERVAL_SECONDS = 0.001


class ForkGuard:
    """A context manager that delays forks of this process until its block ends.

    Threads do not exclude each other. The guard uses lists and dictionaries, whose changes are
    single steps, because an interrupt in the thread that forks could leave a lock locked.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the threads of the parent process, in a child."""
        self._inside: list[int] = []
        self._forks: dict[int, float] = {}  # by thread, when its fork no longer counts

    def __enter__(self) -> None:
        thread = threading.get_ident()
        self._inside.append(thread)
        while self._is_forking():
            self._inside.remove(thread)
            time.sleep(POLL_INTERVAL_SECONDS)
            self._inside.append(thread)

    def __exit__(self, *error: object) -> None:
        self._inside.remove(threading.get_ident())

    def before_fork(self) -> None:
        now = time.monotonic()
        self._forks[threading.get_ident()] = now + 2 * MAX_DELAY_SECONDS
        while self._inside and time.monotonic() < now + MAX_DELAY_SECONDS:
            time.sleep(POLL_INTERVAL_SECONDS)

    def after_fork(self) -> None:
        self._forks.pop(threading.get_ident(), None)

    def _is_forking(self) -> bool:
        now = time.monotonic()
        return any(until > now for until in self._forks.copy().values())


fork_guard = ForkGuard()

os.register_at_fork(
    before=fork_guard.before_fork,
    after_in_parent=fork_guard.after_fork,
    after_in_child=fork_guard.reset,
)
