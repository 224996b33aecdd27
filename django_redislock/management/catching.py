"""Signals that are taken one by one, instead of acting."""

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Self

PASSED_ON = frozenset(
    {
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
    }
)

AGAIN = 3.0
"""Seconds after an interrupt in which another does not disturb who is tidying up."""

POLL = 0.05
"""Seconds between two looks where the system has no way to wait for signals (macOS)."""


class Caught(NamedTuple):
    number: int

    by_kernel: bool | None
    """Whether the terminal sent it, or another process; None if that can't be known."""


class Interrupted(KeyboardInterrupt):
    """A signal came where it ends what is under way."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class TooLate(KeyboardInterrupt):
    """What was bounded by `at_most` took too long."""


class Catcher:
    """For ``with``, in the main thread: takes the signals of `PASSED_ON`.

    Those that this process ignores it leaves alone, as a shell does: so `nohup` reaches
    through. At first they are noted, or raise `Interrupted` inside of `interrupting()`.
    After that they are blocked, and `wait` tells of them, until they get their handlers back.
    """

    blocked: Iterable[int]
    """The signals that were blocked before."""

    def __enter__(self) -> Self:
        self._noted: list[int] = []
        self._raises = False
        self._raised_at = -AGAIN
        # Threads that are started from here on leave SIGCHLD to this one.
        self.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        self._taken = {n for n in PASSED_ON if signal.getsignal(n) is not signal.SIG_IGN}
        self._before: dict[int, Any] = {signal.SIGCHLD: signal.signal(signal.SIGCHLD, _nothing)}
        for number in self._taken:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.blocked)  # what is pending acts now
        for number in self._noted:
            signal.raise_signal(number)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        self._raises = True
        try:
            if self._noted:
                raise Interrupted(self._noted.pop())
            yield
        finally:
            try:
                self._block()
            finally:
                self._raises = False

    def wait(self, seconds: float) -> Caught | None:
        """The next signal, or None: after so many seconds, or earlier if a child has changed."""
        if not self._noted and (info := self._next(seconds)) and info.si_signo in self._taken:
            return Caught(info.si_signo, info.si_code > 0)
        return Caught(self._noted.pop(0), None) if self._noted else None

    def _block(self) -> None:
        if hasattr(signal, "sigtimedwait"):
            signal.pthread_sigmask(signal.SIG_BLOCK, self._taken)

    def _next(self, seconds: float) -> "signal.struct_siginfo | None":
        if hasattr(signal, "sigtimedwait"):
            return signal.sigtimedwait({*self._taken, signal.SIGCHLD}, seconds)
        time.sleep(min(seconds, POLL))
        return None

    def _note(self, number: int, frame: FrameType | None) -> None:
        # Also called for what a thread got that was there before, and does not block it.
        if self._raises and time.monotonic() - self._raised_at >= AGAIN:
            self._raised_at = time.monotonic()
            raise Interrupted(number)
        self._noted.append(number)


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise `TooLate` inside, in the main thread, after so many seconds."""
    before = signal.signal(signal.SIGALRM, _too_late)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def has_terminal() -> bool:
    """Whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def in_foreground() -> bool:
    """Whether what is typed at the terminal sends its signals to this process."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)


def _nothing(number: int, frame: FrameType | None) -> None:
    """A child's end is only told to who does not ignore it."""


def _too_late(number: int, frame: FrameType | None) -> None:
    raise TooLate
