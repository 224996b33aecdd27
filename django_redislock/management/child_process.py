"""A command as a child process, and the signals that this process passes on to it.

This module is also the script that the child process runs first. So it imports only modules of
Python.
"""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from signal import SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2
from types import FrameType
from typing import NoReturn

FORWARDED = (SIGTERM, SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2)


@contextmanager
def signal_handler(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle the signals of `FORWARDED`, in the main thread.

    Signals that this process ignores stay ignored, so that `nohup` works.
    """
    numbers = [n for n in FORWARDED if signal.getsignal(n) is not signal.SIG_IGN]
    before = {n: signal.signal(n, handle) for n in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


class ChildProcess:
    """The process of a command. Without a terminal, it has a process group of its own.

    At a terminal, it stays in the process group of the job, for Ctrl-C and Ctrl-Z.
    """

    def __init__(self, argv: Sequence[str], **environment: str) -> None:
        self._has_group = not any(map(os.isatty, (0, 1, 2)))
        self._popen = subprocess.Popen(  # noqa: S603  the caller chose the command
            [sys.executable, "-I", "-S", __file__, str(os.getpid()), *argv],
            env={**os.environ, **environment},
            close_fds=False,
            process_group=0 if self._has_group else None,
        )
        self.poll, self.wait = self._popen.poll, self._popen.wait

    def send(self, *numbers: int) -> None:
        """Send signals to the process, or to its group, also after the process has ended."""
        for number in numbers:
            with suppress(ProcessLookupError, PermissionError):
                if self._has_group:
                    os.killpg(self._popen.pid, number)
                else:
                    self._popen.send_signal(number)

    def forward(self, number: int) -> None:
        """Send a signal, unless the terminal sends it to the process as well, as with Ctrl-C."""
        if self._has_group or number not in (SIGINT, SIGQUIT):
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


PR_SET_PDEATHSIG = 1


def replace_this_process(parent: str, *argv: str) -> NoReturn:
    """Replace this process with a command that ends with the parent process, even by SIGKILL.

    A process with threads cannot safely do this between fork and exec.
    """
    with suppress(ImportError, OSError, AttributeError):  # Linux only
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):  # it ended before that
        os.kill(os.getpid(), signal.SIGKILL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)  # noqa: S606  the caller chose the command
    except (OSError, ValueError) as error:  # ValueError: an empty text
        reason = getattr(error, "strerror", error)
        print(f"locks run: {argv[0]!r}: {reason}", file=sys.stderr, flush=True)
        # The exit statuses of a shell: not found, cannot be executed.
        is_missing = getattr(error, "errno", None) in (None, errno.ENOENT, errno.ENOTDIR)
        sys.exit(127 if is_missing else 126)


if __name__ == "__main__":
    replace_this_process(*sys.argv[1:])
