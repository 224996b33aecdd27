"""A fork waits until no thread of ours talks to Redis. Else the child has the locks that such a
thread was in, the connection pool's for one, and nobody there to let go of them."""

import os
import threading
import time

LONGEST = 2.0
"""Seconds that a fork waits at most, where Redis does not answer; and for which it may take."""

PAUSE = 0.001
"""Seconds between two looks: forks are rare, and short."""


class Gate:
    """For ``with``: no fork happens inside. Threads don't keep each other out.

    There is no lock in it, as an interrupt in the thread that forks could leave that locked, and
    nothing would be renewed any more: to add to a list, or to take from it, is one step.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """For a child: the threads of its parent are not here."""
        self._inside: list[int] = []
        self._forks: dict[int, float] = {}  # until when each may take

    def __enter__(self) -> None:
        me = threading.get_ident()
        self._inside.append(me)
        while self._is_closed():
            self._inside.remove(me)
            time.sleep(PAUSE)
            self._inside.append(me)

    def __exit__(self, *error: object) -> None:
        self._inside.remove(threading.get_ident())

    def close(self) -> None:
        now = time.monotonic()
        self._forks[threading.get_ident()] = now + 2 * LONGEST
        while self._inside and time.monotonic() < now + LONGEST:
            time.sleep(PAUSE)

    def open(self) -> None:
        self._forks.pop(threading.get_ident(), None)

    def _is_closed(self) -> bool:
        now = time.monotonic()
        return any(until > now for until in self._forks.copy().values())


gate = Gate()


os.register_at_fork(before=gate.close, after_in_parent=gate.open, after_in_child=gate.reset)
