"""Run a command that must not outlive the program that started it.

``python supervisor.py COMMAND...`` runs the command until its own standard input ends. That
happens when the program that started it closes the pipe, or dies for any reason. The supervisor
then terminates the command, and after `GRACE_SECONDS` it kills the rest of its process group.
Start it with ``start_new_session=True``, because it kills its own process group.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading

GRACE_SECONDS = 5


def supervise(command: list[str]) -> int:
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603  given
    ending = threading.Event()
    ender = threading.Thread(target=_end_with_input, args=(child, ending), daemon=True)
    ender.start()
    status = child.wait()
    if ending.is_set():
        ender.join()  # or the rest of the group would outlive this process
    return status


def _end_with_input(child: subprocess.Popen[bytes], ending: threading.Event) -> None:
    while os.read(0, 1024):
        pass
    ending.set()
    child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(GRACE_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[1:]))
