"""Receive signals one by one, in order to forward them to a child process."""

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Self

FORWARDED = frozenset(
    {
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
    }
)

REPEAT_SECONDS = 3.0
"""After an interrupt, another one does not disturb the cleanup for this long."""

POLL_SECONDS = 0.05
"""Between two checks if the system cannot wait for signals (macOS)."""


class ReceivedSignal(NamedTuple):
    number: int

    by_kernel: bool | None
    """Whether the kernel sent it, for the terminal, and no process did. None if unknown."""


class Interrupted(KeyboardInterrupt):
    """A signal arrived that ends the current operation."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class TooLate(KeyboardInterrupt):
    """The time limit of `at_most()` has passed."""


class SignalQueue:
    """A context manager for the main thread that receives the signals of `FORWARDED`.

    Signals that this process ignores stay ignored, so that `nohup` works. Inside `interrupting()`,
    a signal raises `Interrupted`. Before that, signals are stored; after it, they are blocked. In
    both cases `wait()` returns them. At the end the original handlers are restored.
    """

    blocked: Iterable[int]
    """The signals that were blocked before."""

    def __enter__(self) -> Self:
        self._stored: list[int] = []
        self._raises = False
        self._raised_at = -REPEAT_SECONDS
        # Threads that are started from here on inherit the mask, so this thread gets SIGCHLD.
        self.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        self._taken = {n for n in FORWARDED if signal.getsignal(n) is not signal.SIG_IGN}
        self._before: dict[int, Any] = {
            signal.SIGCHLD: signal.signal(signal.SIGCHLD, _ignore_child)
        }
        for number in self._taken:
            self._before[number] = signal.signal(number, self._store)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.blocked)  # delivers pending ones
        for number in self._stored:
            signal.raise_signal(number)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        self._raises = True
        try:
            if self._stored:
                raise Interrupted(self._stored.pop())
            yield
        finally:
            try:
                self._block()
            finally:
                self._raises = False

    def wait(self, seconds: float) -> ReceivedSignal | None:
        """Return the next signal, or None after these seconds or when a child has changed."""
        if not self._stored and (info := self._next(seconds)) and info.si_signo in self._taken:
            return ReceivedSignal(info.si_signo, info.si_code > 0)
        return ReceivedSignal(self._stored.pop(0), None) if self._stored else None

    def _block(self) -> None:
        if hasattr(signal, "sigtimedwait"):
            signal.pthread_sigmask(signal.SIG_BLOCK, self._taken)

    def _next(self, seconds: float) -> "signal.struct_siginfo | None":
        if hasattr(signal, "sigtimedwait"):
            return signal.sigtimedwait({*self._taken, signal.SIGCHLD}, seconds)
        time.sleep(min(seconds, POLL_SECONDS))
        return None

    def _store(self, number: int, frame: FrameType | None) -> None:
        # Also called for a signal that an older thread received, which does not block it.
        if self._raises and time.monotonic() - self._raised_at >= REPEAT_SECONDS:
            self._raised_at = time.monotonic()
            raise Interrupted(number)
        self._stored.append(number)


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise `TooLate` inside the block, in the main thread, after these seconds."""
    before = signal.signal(signal.SIGALRM, _too_late)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def has_terminal() -> bool:
    """Return whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def in_foreground() -> bool:
    """Return whether the terminal sends its signals, such as Ctrl-C, to this process."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)


def _ignore_child(number: int, frame: FrameType | None) -> None:
    """Do nothing. The kernel reports the end of a child only if SIGCHLD is not ignored."""


def _too_late(number: int, frame: FrameType | None) -> None:
    raise TooLate
