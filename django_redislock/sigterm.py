"""Let SIGTERM end a process in the way that Python ends it, so that locks are released.

By default, SIGTERM ends a process without another line of Python. So nothing is released, and a
lock stays held until its lease expires. A handler that raises `SystemExit` runs all ``finally``
clauses first.

As `asyncio.run` does for SIGINT, a handler is installed only in the main thread, only if the
signal still has its default action, and only for a while. So the handlers of a web server, a
Celery worker or your own code stay in place.
"""

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import ClassVar

EXIT_STATUS = 128 + signal.SIGTERM
"""The exit status that a shell reports for a process that SIGTERM ended."""

RETRY_SECONDS = 0.01
"""If SIGTERM strikes where it has no effect, it is sent again after this time."""


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Raise `SystemExit` on SIGTERM until the end of the block."""
    handler = SigtermHandler()
    handler.install()
    try:
        yield
    finally:
        handler.remove()


class SigtermHandler:
    """A handler that raises `SystemExit` in the main thread. All users share it."""

    _users: ClassVar["set[SigtermHandler]"] = set()

    def install(self) -> None:
        """Install the handler, if it is allowed to."""
        if may_install():
            signal.signal(signal.SIGTERM, _exit)
        if in_main_thread() and signal.getsignal(signal.SIGTERM) is _exit:
            self._users.add(self)

    def remove(self) -> None:
        """Restore the default action after the last user. A handler that your code has installed
        since then stays."""
        self._users.discard(self)
        if in_main_thread() and not self._users and signal.getsignal(signal.SIGTERM) is _exit:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


class LoopSigtermHandler:
    """A handler that raises `SystemExit` between two steps of the running event loop.

    A handler that raises it at once would do so inside the step of any task, such as the one that
    has to release the lock. This one ends the loop, so `asyncio.run` cancels all tasks. All users
    in an event loop share it.
    """

    _users: ClassVar["dict[LoopSigtermHandler, asyncio.AbstractEventLoop]"] = {}

    def install(self) -> None:
        """Install the handler, if it is allowed to."""
        loop = asyncio.get_running_loop()
        if not in_main_thread():
            return
        ends = _loop_that_ends()
        if may_install() or (ends and ends.is_closed()):
            # Not `loop.add_signal_handler`, which does not tell whose handler is in place.
            signal.signal(signal.SIGTERM, partial(_exit_loop, loop))
            ends = loop
        if ends is loop:
            self._users[self] = loop

    def remove(self) -> None:
        """Restore the default action after the last user. A handler that your code has installed
        since then stays."""
        loop = self._users.pop(self, None)
        if loop is None or loop in self._users.values():
            return
        if in_main_thread() and _loop_that_ends() is loop:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def may_install() -> bool:
    """Return whether this is the main thread, and nobody else handles SIGTERM."""
    return in_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def _exit(_number: int, frame: FrameType | None) -> None:
    if _is_in_finalizer(frame):
        main = threading.main_thread().ident
        again = threading.Timer(RETRY_SECONDS, signal.pthread_kill, (main, signal.SIGTERM))
        again.daemon = True
        again.start()
        return
    raise SystemExit(EXIT_STATUS)


def _is_in_finalizer(frame: FrameType | None) -> bool:
    """Return whether Python would ignore an exception, because a finalizer is running.

    The end of a loop over the terms of a leader is one: it steps down.
    """
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def _loop_that_ends() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that SIGTERM ends, if the handler in place is of this module."""
    handler = signal.getsignal(signal.SIGTERM)
    if isinstance(handler, partial) and handler.func is _exit_loop:
        loop: asyncio.AbstractEventLoop = handler.args[0]
        return loop
    return None


def _exit_loop(loop: asyncio.AbstractEventLoop, number: int, frame: FrameType | None) -> None:
    if loop.is_closed():
        _exit(number, frame)
    else:
        loop.call_soon_threadsafe(_exit, number, None)
