"""Run a command that must not outlive the program that started it.

``python keeper.py COMMAND...`` runs the command until its own standard input
ends: when the starter closes it, or dies, however it dies. Then the command is
asked to end, and after `GRACE` seconds whatever is left of its process group is
killed. Start it with ``start_new_session=True``: the group must be its own.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading

GRACE = 5


def keep(command: list[str]) -> int:
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603  as told
    ending = threading.Event()
    ender = threading.Thread(target=_end_with_input, args=(child, ending), daemon=True)
    ender.start()
    status = child.wait()
    if ending.is_set():
        ender.join()  # or what is left of the group would outlive this process
    return status


def _end_with_input(child: subprocess.Popen[bytes], ending: threading.Event) -> None:
    while os.read(0, 1024):
        pass
    ending.set()
    child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(GRACE)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1:]))
