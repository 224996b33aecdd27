"""Replace this process with a command, tied to the life of the parent process.

This is a script for an interpreter of its own, because a process with threads cannot safely do
this between fork and exec. It imports little, and nothing of this package.
"""

import errno
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

CANNOT_EXECUTE, NOT_FOUND = 126, 127
"""Exit statuses, as of a shell."""

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Let the kernel (Linux only) send SIGKILL when `parent` ends."""
    with suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before that
        os.kill(os.getpid(), signal.SIGKILL)


def as_before_python(blocked: Sequence[int]) -> None:
    """Restore the signal handling that Python changed. Pending signals are delivered."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def become(argv: list[str]) -> NoReturn:
    """Execute a command, or exit with the status that a shell has for the error."""
    try:
        try_to_become(argv)
    except OSError as error:
        print(f"locks run: {argv[0]!r}: {error.strerror}", file=sys.stderr, flush=True)
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        sys.exit(NOT_FOUND if missing else CANNOT_EXECUTE)


def try_to_become(argv: list[str]) -> NoReturn:
    try:
        os.execvp(argv[0], argv)  # noqa: S606  the caller chose the command
    except OSError as error:
        script = shutil.which(argv[0])
        if error.errno != errno.ENOEXEC or script is None:
            raise
        os.execv("/bin/sh", ["sh", script, *argv[1:]])  # noqa: S606  it has no "#!" line


def main(parent: str, blocked: str, *argv: str) -> NoReturn:
    die_with(int(parent))
    as_before_python([int(number) for number in blocked.split(",") if number])
    become([*argv])


if __name__ == "__main__":
    main(*sys.argv[1:])
