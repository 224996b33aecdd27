"""A shell on a terminal of its own."""

import os
import pty
import re
import select
import termios
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

WAIT_SECONDS = 100
"""Limit of each wait. Generous, so that the test does not fail on a busy machine."""

ESCAPE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|[()].|[=>])|\r")

TYPED = re.compile(r"(\$|>>>) (.*)")


class Terminal:
    def __init__(self, folder: Path, environment: Mapping[str, str], *command: str) -> None:
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(command[0], command, environment)  # noqa: S606
        termios.tcsetwinsize(self._terminal, (50, 1000))  # so that no line wraps
        self.text = ""

    @property
    def folder(self) -> Path:
        return Path(psutil.Process(self.pid).cwd())

    def type(self, text: str) -> None:
        self.text = ""
        os.write(self._terminal, text.encode())

    def wait_for(self, *lines: str, prompt: str = "") -> str:
        """Wait until the output since the last typed text has the lines, in order, and ends with
        the prompt. Return it."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not (_has(self.text, lines) and self.text.endswith(prompt)):
            assert time.monotonic() < deadline, f"not seen: {lines} {prompt}\nbut:\n{self.text}"
            if select.select([self._terminal], [], [], 0.1)[0]:
                printed = os.read(self._terminal, 1 << 16).decode(errors="replace")
                self.text += ESCAPE.sub("", printed)
        return self.text

    def follow(self, listing: str) -> None:
        """Type the lines with a prompt, and wait for what is shown below them. At the end of a
        listing with ``...``, its last program keeps running."""
        shown: list[str] = []
        for line in listing.splitlines():
            if typed := TYPED.fullmatch(line):
                self.wait_for(*shown, prompt=f"{typed[1]} ")
                self.type(f"{typed[2]}\n")
                shown = []
            elif line != "...":
                shown.append(line)
        self.wait_for(*shown, prompt="" if listing.endswith("...\n") else " ")

    def close(self) -> None:
        """End all programs that were started in it."""
        shell = psutil.Process(self.pid)
        for process in (*shell.children(recursive=True), shell):
            process.kill()
        os.waitpid(self.pid, 0)
        os.close(self._terminal)


def _has(text: str, lines: Iterable[str]) -> bool:
    """Return whether the text has the lines, in order. Words with a digit, such as times and ids,
    differ, and a reader may be slower than the first renewal."""
    printed = iter(text.splitlines())
    for line in lines:
        words = re.split(r"\s+|\.\.\.", line.partition("; ")[0])
        constant = [re.escape(word) for word in words if not re.search(r"\d", word)]
        if not any(re.search(".*?".join(constant), each) for each in printed):
            return False
    return True
