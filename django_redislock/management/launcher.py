"""Replace this process with a command, tied to the life of the parent process.

This is a script for an interpreter of its own, because a process with threads cannot safely do
this between fork and exec. It imports little, and nothing of this package.
"""

import errno
import os
import shutil
import signal
import sys
from contextlib import suppress
from typing import NoReturn

CANNOT_EXECUTE, NOT_FOUND = 126, 127
"""Exit statuses, as of a shell."""

PR_SET_PDEATHSIG = 1


def main(parent: str, *argv: str) -> NoReturn:
    with suppress(ImportError, OSError, AttributeError):  # Linux only
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):  # it ended before that
        os.kill(os.getpid(), signal.SIGKILL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        execute(argv)
    except OSError as error:
        print(f"locks run: {argv[0]!r}: {error.strerror}", file=sys.stderr, flush=True)
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        sys.exit(NOT_FOUND if missing else CANNOT_EXECUTE)


def execute(argv: tuple[str, ...]) -> NoReturn:
    try:
        os.execvp(argv[0], argv)  # noqa: S606  the caller chose the command
    except OSError as error:
        script = shutil.which(argv[0])
        if error.errno != errno.ENOEXEC or script is None:
            raise
        os.execv("/bin/sh", ["sh", script, *argv[1:]])  # noqa: S606  it has no "#!" line


if __name__ == "__main__":
    main(*sys.argv[1:])
