"""Replace this process with a command that ends with the parent process, even by SIGKILL.

This is a script for an interpreter of its own, because a process with threads cannot safely do
this between fork and exec. It imports little, and nothing of this package.
"""

import errno
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

PR_SET_PDEATHSIG = 1


def main(parent: str, *argv: str) -> NoReturn:
    with suppress(ImportError, OSError, AttributeError):  # Linux only
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):  # it ended before that
        os.kill(os.getpid(), signal.SIGKILL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)  # noqa: S606  the caller chose the command
    except OSError as error:
        print(f"locks run: {argv[0]!r}: {error.strerror}", file=sys.stderr, flush=True)
        # The exit statuses of a shell: not found, cannot be executed.
        sys.exit(127 if error.errno in (errno.ENOENT, errno.ENOTDIR) else 126)


if __name__ == "__main__":
    main(*sys.argv[1:])
