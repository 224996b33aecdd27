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
from typing import ClassVar, NoReturn

EXIT_STATUS = 128 + signal.SIGTERM
"""The exit status that a shell reports for a process that SIGTERM ended."""


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
        if self._users or not in_main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is _exit:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


class LoopSigtermHandler:
    """A handler that raises `SystemExit` between two steps of the running event loop.

    A handler of `signal.signal` would raise it inside the step of any task, such as the one that
    has to release the lock. From here it ends the loop, so `asyncio.run` cancels all tasks. All
    users in an event loop share the handler.
    """

    _users: ClassVar["dict[LoopSigtermHandler, asyncio.AbstractEventLoop]"] = {}

    def install(self) -> None:
        """Install the handler, if it is allowed to."""
        loop = asyncio.get_running_loop()
        if may_install():
            loop.add_signal_handler(signal.SIGTERM, _exit)
            self._users[self] = loop
        elif loop in self._users.values():
            self._users[self] = loop

    def remove(self) -> None:
        """Restore the default action after the last user. The end of the event loop does so,
        too."""
        loop = self._users.pop(self, None)
        if loop is None or loop in self._users.values():
            return
        if in_main_thread() and not loop.is_closed():
            loop.remove_signal_handler(signal.SIGTERM)


def in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def may_install() -> bool:
    """Return whether this is the main thread, and nobody else handles SIGTERM."""
    return in_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def _exit(*_: object) -> NoReturn:
    raise SystemExit(EXIT_STATUS)
