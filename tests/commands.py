"""Run `manage.py locks` in this process, as a subprocess, or on a pseudo-terminal."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from typing import IO, NamedTuple, Self, TextIO

import psutil
import pytest
from django.core.management import call_command, load_command_class

from .tools import ROOT, wait_until

MANAGE = [sys.executable, "-W", "error", "-m", "django", "locks"]

SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.settings"}

UNWANTED = {"NO_COLOR", "FORCE_COLOR", "LINES", "COLUMNS"}
"""The environment variables by which a shell describes its own terminal."""


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str) -> Done:
    """The command as a shell runs it, but in this process."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            load_command_class("django_redislock", "locks").run_from_argv(
                ["manage.py", "locks", *arguments]
            )
        except SystemExit as ended:
            return Done(ended.code, out.getvalue(), err.getvalue())
    return Done(0, out.getvalue(), err.getvalue())


def run_process(
    *arguments: str,
    program: Sequence[str] = MANAGE,
    stdin: int | IO[bytes] | None = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.PIPE,
    written: str | None = None,
    **environment: str,
) -> Done:
    """Run the command, or another program, as a subprocess without a terminal."""
    done = subprocess.run(
        [*program, *arguments],
        cwd=ROOT,
        env=os.environ | SETTINGS | environment,
        stdin=None if written is not None else stdin,
        input=written,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        start_new_session=True,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def call(*arguments: str) -> str:
    out = StringIO()
    call_command("locks", *arguments, stdout=out)
    return out.getvalue()


class TerminalStream(StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def call_on_terminal(*arguments: str, columns: int) -> str:
    """Return what the command prints on a terminal of this size, in this process."""
    out = TerminalStream()
    with pytest.MonkeyPatch.context() as patch:
        for name in UNWANTED:
            patch.delenv(name, raising=False)
        patch.setenv("COLUMNS", str(columns))
        patch.setenv("DJANGO_COLORS", "nocolor")
        call_command("locks", *arguments, stdout=out)
    return out.getvalue()


class Terminal:
    """`manage.py locks`, or another program, on a pseudo-terminal. `raw` has what it prints."""

    def __init__(self, *arguments: str, program: Sequence[str] = MANAGE, **env: str) -> None:
        self.ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        inherited = {name: os.environ[name] for name in os.environ.keys() - UNWANTED}
        self.process = subprocess.Popen(
            [*program, *arguments],
            cwd=ROOT,
            env=inherited | SETTINGS | {"TERM": "xterm-256color"} | env,
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            start_new_session=True,
        )
        self.raw = b""

    @property
    def text(self) -> str:
        """What was printed, without control sequences."""
        return re.sub(r"\x1b\[[\d;]*m|\r", "", self.raw.decode(errors="replace"))

    def shows(self, pattern: str) -> None:
        """Return when the pattern is printed."""
        wait_until(lambda: self.read() or re.search(pattern, self.text, re.MULTILINE), timeout=60)

    def read(self) -> None:
        while select.select([self.ours], [], [], 0)[0]:
            self.raw += os.read(self.ours, 1 << 16)

    def press(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def end(self) -> int:
        """Return the exit status, after all that was printed is read."""
        wait_until(lambda: self.read() or self.process.poll() is not None, timeout=60)
        self.read()
        return self.process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)


class Subprocess:
    """A running command without a terminal. At the end, its remaining processes are killed."""

    def __init__(self, *argv: str, before: Sequence[str] = (), **env: str) -> None:
        self.process = subprocess.Popen(
            [*before, *argv],
            cwd=ROOT,
            env=os.environ | SETTINGS | env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.pid = self.process.pid
        self.said: list[str] = []
        self.complained: list[str] = []
        streams = {self.process.stdout: self.said, self.process.stderr: self.complained}
        self._readers = [threading.Thread(target=_read, args=each) for each in streams.items()]
        for reader in self._readers:
            reader.start()

    def expect(self, pattern: str) -> str:
        """Return the rest of the first line of stdout that has the pattern."""
        return self._first(self.said, pattern)

    def expect_complaint(self, pattern: str) -> str:
        """Return the same of stderr."""
        return self._first(self.complained, pattern)

    def _first(self, lines: list[str], pattern: str) -> str:
        def rest() -> list[str]:
            found = (re.search(pattern, line) for line in lines)
            return [match.string[match.end() :].strip() for match in found if match]

        with suppress(AssertionError):
            wait_until(rest)
        assert rest(), f"no {pattern!r} in {lines}, but {self.complained}"
        return rest()[0]

    def tell(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def send(self, name: str) -> None:
        self.process.send_signal(getattr(signal, name))

    def wait(self) -> int:
        return self.process.wait(60)

    def __enter__(self) -> Self:
        self._family = psutil.Process(self.pid)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(psutil.NoSuchProcess):
            for each in self._family.children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    each.kill()
        self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join(timeout=5)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            with suppress(BrokenPipeError):
                stream.close()


def _read(stream: TextIO, lines: list[str]) -> None:
    lines.extend(line.rstrip("\n") for line in stream)
