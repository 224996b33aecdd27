"""The demo's environment: an embedded Valkey, a SQLite file, and processes that end with it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeVar

from django_redislock.testing import EmbeddedServer

from . import supervisor

T = TypeVar("T")

HERE = Path(__file__).resolve().parent
TIMEOUT_SECONDS = 60
"""Limit of each wait. Generous, so that the demo does not fail on a busy machine."""


class DemoError(Exception):
    """The demo cannot continue."""


class Stage:
    """The server, the folder (database and logs) and the running processes."""

    def __init__(self, server: EmbeddedServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str) -> None:
        """Start a Python program (``-m module ...`` or a file) whose output goes to a log."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(  # noqa: S603  our own commands
                [sys.executable, "-P", supervisor.__file__, sys.executable, *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=HERE.parent,
                # Files that a killed worker leaves behind are deleted with our folder.
                env=os.environ | {"TMPDIR": str(self.folder)},
                start_new_session=True,
            )

    def pause(self, seconds: float) -> None:
        self.check()
        time.sleep(seconds)

    def check(self) -> None:
        """Raise `DemoError` if a process has ended."""
        for name, process in self.running.items():
            if process.poll() is not None:
                raise DemoError(f"{name} ended with {process.returncode}\n{self.log_of(name)}")

    def log_of(self, name: str) -> str:
        """Return the end of the log of `name`, with a heading."""
        text = (self.folder / f"{name}.log").read_text(errors="replace")
        return f"--- {name}\n{text[-2000:]}"

    def wait_for(self, what: str, probe: Callable[[], T | None]) -> T:
        """Call `probe` until its answer is true, and return the answer."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            if answer := probe():
                return answer
            self.pause(0.05)
        logs = "\n".join(map(self.log_of, self.running))
        raise DemoError(f"timed out after {TIMEOUT_SECONDS} s waiting for {what}\n{logs}")

    @contextlib.contextmanager
    def crew(self, module: str, *options: str, size: int) -> "Iterator[Crew]":
        """Processes of one module that start their work together."""
        crew = Crew()
        try:
            crew.gather([sys.executable, "-m", module, *options], size)
            yield crew
        finally:
            crew.dismiss()

    def clear(self) -> None:
        for process in self.running.values():
            if process.stdin:
                process.stdin.close()
        for process in self.running.values():
            _wait_or_kill(process)
        self.running.clear()


class Crew:
    """Programs that print ``ready``, and start their work when they read a line."""

    def __init__(self) -> None:
        self.members: list[subprocess.Popen[str]] = []

    def gather(self, command: list[str], size: int) -> None:
        for _ in range(size):
            self.members.append(_start_member(command))
        for member in self.members:
            if not member.stdout or member.stdout.readline() != "ready\n":
                raise DemoError(f"{' '.join(command[1:])} ended with {member.wait()}")

    def go(self) -> None:
        for member in self.members:
            if member.stdin:
                member.stdin.write("go\n")
                member.stdin.flush()

    def join(self) -> None:
        for member in self.members:
            try:
                status = member.wait(TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired as error:
                raise DemoError(str(error)) from error
            if status:
                raise DemoError(f"{member.args!r} ended with {status}")

    def dismiss(self) -> None:
        for member in self.members:
            member.kill()
            member.communicate()


def _start_member(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603  our own commands
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=HERE.parent,
        start_new_session=True,
    )


def _wait_or_kill(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(2 * supervisor.GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def set_up() -> Iterator[Stage]:
    """Yield a stage, with the environment variables and Django set up for it."""
    with interruptible(), contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="testproject-"))
        server = stack.enter_context(EmbeddedServer())
        stage = Stage(server, Path(folder))
        stack.callback(stage.clear)
        # Runs first when the stack unwinds, so that no signal interrupts the cleanup.
        stack.callback(_ignore_signals)
        _point_at(stage)
        yield stage


def _point_at(stage: Stage) -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "testproject.settings"
    os.environ["REDIS_URL"] = stage.server.url
    os.environ["TESTPROJECT_DB"] = str(stage.folder / "db.sqlite3")
    import django

    django.setup()


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
REPEAT_SECONDS = 0.3
"""Time until an interrupt is repeated. Python discards one that arrives during a finalizer."""


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Treat a closed terminal and SIGTERM like Ctrl-C."""
    before = {each: signal.signal(each, _interrupt) for each in SIGNALS}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for each, handler in before.items():
            signal.signal(each, handler)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    signal.setitimer(signal.ITIMER_REAL, REPEAT_SECONDS)
    raise KeyboardInterrupt


def _ignore_signals() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
