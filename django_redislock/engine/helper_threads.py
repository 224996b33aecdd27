"""Run a function where no interrupt can strike it.

Python runs signal handlers in the main thread, and a handler can raise at almost any step: Ctrl-C
does, and Celery at a soft time limit. The pools of redis-py 5 to 8 do not survive that. This is
the one place that makes up for it:

- `Connection.connect()` disconnects only after a `RedisError`. A handshake whose replies are
  unread goes back to the pool, and each later command reads the reply to the command before it.
  So a caller could take the lock of somebody else for its own.
- `get_connection()` and `release()` move a connection in several steps. After an interrupt between
  two of them, it is in use forever, or lost.
- The queue of a `BlockingConnectionPool` can stay locked.

In a helper thread all of them are safe. The same is true of greenlets, which have interrupts of
their own: `kill()` and `gevent.Timeout`.
"""

import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty
from typing import Any

from ..identity import threads_are_real

IDLE_SECONDS = 0.5
"""A helper thread ends after this time without a function to run."""

THREAD_NAME = "redislock-connect"


def can_be_interrupted() -> bool:
    """Return whether signal handlers run in this thread, or other greenlets can interrupt it."""
    return threading.get_ident() == threading.main_thread().ident or not threads_are_real()


def run_apart(function: Callable[[], object], seconds: float | None = None) -> bool:
    """Run a function in a helper thread, and wait for it.

    An interrupt ends the wait, and not the function. If no thread can be started, because the
    interpreter is shutting down, the function runs in this thread.

    Args:
        function: If it raises, so does this function, unless it no longer waits.
        seconds: How long to wait. None means without limit.

    Returns:
        Whether the function has ended.
    """
    errors: list[BaseException] = []
    ended = threading.Lock()
    ended.acquire()

    def work() -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)
        ended.release()

    try:
        _start(work)
    except RuntimeError:
        function()
        return True
    has_ended = _wait(ended, seconds)
    if errors:
        raise errors.pop()
    return has_ended


def _wait(ended: threading.Lock, seconds: float | None) -> bool:
    if seconds is None:
        return ended.acquire()
    due = time.monotonic() + seconds
    if ended.acquire(timeout=seconds):
        return True
    # If this process was stopped, so was the helper thread. It gets as long again as this wait
    # ended late.
    return ended.acquire(timeout=max(0, min(time.monotonic() - due, seconds)))


def _start(work: Callable[[], None]) -> None:
    if not threads_are_real():
        # A greenlet costs little, and must not outlive the event loop that it belongs to.
        threading.Thread(target=work, name=THREAD_NAME, daemon=True).start()
        return
    if sys.is_finalizing():  # a daemon thread does not run any more
        raise RuntimeError("the interpreter is shutting down")
    pid = os.getpid()  # uWSGI forks without Python's hooks
    helpers = _helpers.get(pid) or _helpers.setdefault(pid, _Helpers())
    helpers.start(work)


class _Helpers:
    """Helper threads that run functions one after the other.

    To start a thread for each function would take several times as long.
    """

    def __init__(self) -> None:
        self._waiting: deque[None] = deque()
        """An entry for each helper that waits. A caller removes it, and then passes a function."""
        self._functions: Any = queue.SimpleQueue()

    def start(self, work: Callable[[], None]) -> None:
        try:
            self._waiting.pop()
        except IndexError:
            threading.Thread(target=self._run, args=[work], name=THREAD_NAME, daemon=True).start()
        else:
            self._functions.put(work)

    def _run(self, work: Callable[[], None]) -> None:
        while True:
            work()
            del work  # it would keep a lock alive
            self._waiting.append(None)
            while True:
                try:
                    work = self._functions.get(timeout=IDLE_SECONDS)
                    break
                except Empty:
                    try:
                        self._waiting.pop()
                        return
                    except IndexError:
                        # A function is about to come. Or an interrupt struck who had it, and this
                        # helper stays.
                        continue


_helpers: dict[int, _Helpers] = {}

os.register_at_fork(after_in_child=_helpers.clear)
