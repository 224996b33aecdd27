"""A terminal with a shell, for typed input."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

import psutil
from psutil import STATUS_ZOMBIE as ZOMBIE

from .patterns import pattern, tidied

PROMPT = r"(?:\$|>>>) "

WAIT_SECONDS = 60
"""Limit of each wait. Generous, so that the test does not fail on a busy machine."""

ESCAPE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|[()].|[=>])")

# A new session gets the first terminal that it opens.
SHELL = 'exec bash --norc --noprofile --noediting -i <"$0" >"$0" 2>&1'


class Terminal:
    """A bash on its own terminal. Its output is compared continuously.

    `close` ends all programs that were started in it.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        # Wide enough that no line wraps.
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 1000, 0, 0))
        self._shell = subprocess.Popen(
            ["sh", "-c", SHELL, os.ttyname(theirs)],
            cwd=folder,
            env=environment | {"PS1": "$ ", "TERM": "dumb", "PYTHON_BASIC_REPL": "1"},
            start_new_session=True,
        )
        self._theirs = theirs
        self._raw = b""
        self._compared = 0
        self._expected = ""
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def folder(self) -> Path:
        """The working directory of the shell."""
        return Path(psutil.Process(self._shell.pid).cwd())

    def type(self, line: str, *, after: str) -> None:
        """Wait for the expected output and the prompt `after`, and then type a line."""
        self._wait_for(self._expected + re.escape(after) + r"\Z")
        self._compared, self._expected = len(self._raw), pattern(line + "\n")
        os.write(self._ours, line.encode() + b"\n")

    def expect(self, shown: str) -> None:
        self._expected += pattern(shown)

    def settle(self, *, goes_on: bool) -> None:
        """Wait for the expected output, and for a prompt unless a program keeps running."""
        self._wait_for(self._expected + ("" if goes_on else PROMPT + r"\Z"))

    def processes(self) -> list[psutil.Process]:
        """Return the processes in the terminal, except the shell."""
        return [each for each in psutil.process_iter() if self._is_running_here(each)]

    def close(self) -> None:
        while running := self.processes():
            for process in running:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(running, timeout=1)
        self._shell.kill()
        self._shell.wait()
        os.close(self._theirs)
        self._reader.join()
        os.close(self._ours)

    def _is_running_here(self, process: psutil.Process) -> bool:
        try:
            is_here = os.getsid(process.pid) == self._shell.pid
            return is_here and process.pid != self._shell.pid and process.status() != ZOMBIE
        except (OSError, psutil.NoSuchProcess):
            return False

    def _wait_for(self, expected: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not re.match(expected, self._seen()):
            assert time.monotonic() < deadline, f"not seen: {expected!r}\nbut:\n{self._seen()}"
            time.sleep(0.01)

    def _seen(self) -> str:
        text = self._raw[self._compared :].decode(errors="replace")
        return tidied(ESCAPE.sub("", text).replace("\r", ""))

    def _read(self) -> None:
        try:
            while data := os.read(self._ours, 1 << 16):
                self._raw += data
        except OSError:  # a terminal raises it when no process can write to it any more
            return
