"""A command as a child process, and the signals that this process passes on to it."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
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


class SignalQueue:
    """A context manager for the main thread that receives the signals of `FORWARDED`.

    Signals that this process ignores stay ignored, so that `nohup` works.
    """

    interrupts = True
    """Whether the next signal raises `Interrupted`. All later signals are stored."""

    def __init__(self) -> None:
        # Unlike other queues, it can be used in a signal handler.
        self._received: SimpleQueue[int] = SimpleQueue()

    def __enter__(self) -> Self:
        numbers = [n for n in FORWARDED if signal.getsignal(n) is not signal.SIG_IGN]
        self._before: dict[int, Any] = {n: signal.signal(n, self._receive) for n in numbers}
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: self.wake())
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def wait(self, seconds: float) -> int:
        """Return the next signal, or 0 after that time, after `wake()` or if a process ended."""
        try:
            return self._received.get(timeout=seconds)
        except Empty:
            return 0

    def wake(self) -> None:
        self._received.put(0)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.interrupts:
            self.interrupts = False
            raise Interrupted(number)
        self._received.put(number)


class ChildProcess:
    """The process of a command. Without a terminal, it has a process group of its own.

    At a terminal, it stays in the process group of the job, for Ctrl-C and Ctrl-Z.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self._has_group = not _has_terminal()
        self._popen = subprocess.Popen(  # noqa: S603  the caller chose the command
            [sys.executable, "-I", "-S", launcher.__file__, str(os.getpid()), *argv],
            env={**os.environ, **environment},
            close_fds=False,
            process_group=0 if self._has_group else None,
        )
        self.poll, self.wait = self._popen.poll, self._popen.wait

    def send(self, number: int) -> None:
        """Send a signal to the process, or to its group, also after the process has ended."""
        with suppress(ProcessLookupError, PermissionError):
            if self._has_group:
                os.killpg(self._popen.pid, number)
            else:
                self._popen.send_signal(number)

    def terminate(self) -> None:
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)  # a stopped process cannot handle SIGTERM

    def forward(self, number: int) -> None:
        """Send a signal, unless the terminal sends it to the process as well, as with Ctrl-C."""
        if self._has_group or number not in (signal.SIGINT, signal.SIGQUIT):
            self.send(number)

    def is_running(self) -> bool:
        """Return whether the process or another process of its group runs."""
        if self.poll() is None:
            return True
        if self._has_group:
            with suppress(OSError):
                os.killpg(self._popen.pid, 0)
                return True
        return False


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
