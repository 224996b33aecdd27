"""A command as a child process, and the signals that this process passes on to it."""

import os
import select
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Self

from . import launcher

FORWARDED = (
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


class Interrupted(KeyboardInterrupt):
    """A signal ended the wait for the lock."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class TooLate(KeyboardInterrupt):
    """The time limit of `at_most()` has passed. Code that handles errors does not catch it."""


class SignalQueue:
    """A context manager for the main thread that receives the signals of `FORWARDED`.

    Signals that this process ignores stay ignored, so that `nohup` works.
    """

    def __enter__(self) -> Self:
        self._received: deque[int] = deque()
        self._raises = False
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        numbers = [n for n in FORWARDED if signal.getsignal(n) is not signal.SIG_IGN]
        self._before: dict[int, Any] = {n: signal.signal(n, self._receive) for n in numbers}
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._reader)
        os.close(self._writer)
        for number in self._received:
            signal.raise_signal(number)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Raise `Interrupted` at the first signal. All later signals are stored."""
        self._raises = True
        try:
            if self._received:
                raise Interrupted(self._received.popleft())
            yield
        finally:
            self._raises = False

    def wait(self, seconds: float) -> int | None:
        """Return the next signal, or None after these seconds or when a child has changed."""
        if not self._received and select.select([self._reader], [], [], seconds)[0]:
            os.read(self._reader, 1 << 16)
        return self._received.popleft() if self._received else None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._raises:
            self._raises = False
            raise Interrupted(number)
        self._received.append(number)


class ChildProcess:
    """The process of a command. Without a terminal, it has a process group of its own.

    At a terminal, it stays in the process group of the job, for Ctrl-C and Ctrl-Z.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[bytes, bytes]) -> None:
        self._has_group = _foreground_group() is None
        self._popen = subprocess.Popen(  # noqa: S603  the caller chose the command
            [sys.executable, "-I", "-S", launcher.__file__, str(os.getpid()), *argv],
            env={**os.environb, **environment},
            close_fds=False,
            process_group=0 if self._has_group else None,
        )

    def status(self) -> int | None:
        """Return the exit status, negative for a signal, or None while it runs."""
        return self._popen.poll()

    def send(self, number: int) -> None:
        """Send a signal to the process, or to its group, also after the process has ended."""
        with suppress(ProcessLookupError, PermissionError):
            if self._has_group:
                os.killpg(self._popen.pid, number)
            elif self.status() is None:
                os.kill(self._popen.pid, number)

    def terminate(self) -> None:
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)  # a stopped process cannot handle SIGTERM

    def forward(self, number: int) -> None:
        """Send a signal, unless the terminal sends it to the process as well, as with Ctrl-C."""
        is_of_keyboard = number in (signal.SIGINT, signal.SIGQUIT) and not self._has_group
        if not (is_of_keyboard and _foreground_group() == os.getpgrp()):
            self.send(number)

    def has_running_group(self) -> bool:
        """Return whether other processes of the group run. The command itself has ended."""
        if not self._has_group:
            return False
        with suppress(ChildProcessError):  # in a container, this process can be their parent
            while os.waitpid(-self._popen.pid, os.WNOHANG)[0]:
                pass
        with suppress(PermissionError):
            try:
                os.killpg(self._popen.pid, 0)
            except ProcessLookupError:
                return False
        return True


def _foreground_group() -> int | None:
    """Return the process group that gets the signals of the terminal, or None without one."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return None
    try:
        return os.tcgetpgrp(terminal)
    finally:
        os.close(terminal)


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise `TooLate` inside the block, in the main thread, after these seconds."""

    def too_late(*_: object) -> None:
        raise TooLate

    before = signal.signal(signal.SIGALRM, too_late)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)
        signal.setitimer(signal.ITIMER_REAL, *timer)
