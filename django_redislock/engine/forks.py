"""A fork waits until no thread of ours talks to Redis. Else the child has the locks that such a
thread was in, the connection pool's for one, and nobody there to let go of them."""

import os
import threading

LONGEST = 2.0
"""Seconds that a fork waits at most, where Redis does not answer."""


class Gate:
    """For ``with``: no fork happens inside. Threads don't keep each other out."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """For a child: the threads of its parent are not here."""
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        self._forks = 0

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._forks)
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._forks += 1
            self._changed.wait_for(lambda: not self._inside, LONGEST)

    def open(self) -> None:
        with self._changed:
            self._forks -= 1
            self._changed.notify_all()


gate = Gate()


os.register_at_fork(before=gate.close, after_in_parent=gate.open, after_in_child=gate.reset)
