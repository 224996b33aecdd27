"""What the demo runs on: an embedded Valkey, a SQLite file, and processes that end with it."""

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

from . import keeper

T = TypeVar("T")

HERE = Path(__file__).resolve().parent
PATIENCE = 60
"""Seconds to wait for anything at all; a busy machine is no reason to fail."""


class Failed(Exception):
    """The demo can't go on."""


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
                [sys.executable, "-P", keeper.__file__, sys.executable, *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=HERE.parent,
                # What a killed worker leaves in the temporary folder goes with ours.
                env=os.environ | {"TMPDIR": str(self.folder)},
                start_new_session=True,
            )

    def pause(self, seconds: float) -> None:
        self.check()
        time.sleep(seconds)

    def check(self) -> None:
        """Raise `Failed` if a process has ended."""
        for name, process in self.running.items():
            if process.poll() is not None:
                raise Failed(f"{name} ended with {process.returncode}\n{self.log_of(name)}")

    def log_of(self, name: str) -> str:
        """The end of what it said, with a heading."""
        text = (self.folder / f"{name}.log").read_text(errors="replace")
        return f"--- {name}\n{text[-2000:]}"

    def wait_for(self, what: str, probe: Callable[[], T | None]) -> T:
        """Ask again until the answer is true, and return it."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if answer := probe():
                return answer
            self.pause(0.05)
        logs = "\n".join(map(self.log_of, self.running))
        raise Failed(f"waited {PATIENCE} s in vain for {what}\n{logs}")

    @contextlib.contextmanager
    def crew(self, module: str, *options: str, size: int) -> "Iterator[Crew]":
        """Processes of one module that begin together."""
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
    """Programs that say when they are ready, and begin when they are told."""

    def __init__(self) -> None:
        self.members: list[subprocess.Popen[str]] = []

    def gather(self, command: list[str], size: int) -> None:
        for _ in range(size):
            self.members.append(_start_member(command))
        for member in self.members:
            if not member.stdout or member.stdout.readline() != "ready\n":
                raise Failed(f"{' '.join(command[1:])} ended with {member.wait()}")

    def go(self) -> None:
        for member in self.members:
            if member.stdin:
                member.stdin.write("go\n")
                member.stdin.flush()

    def join(self) -> None:
        for member in self.members:
            try:
                status = member.wait(PATIENCE)
            except subprocess.TimeoutExpired as error:
                raise Failed(str(error)) from error
            if status:
                raise Failed(f"{member.args!r} ended with {status}")

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
        process.wait(2 * keeper.GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def set_up() -> Iterator[Stage]:
    """A stage, the environment that points at it, and Django set up on it."""
    with interruptible(), contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="testproject-"))
        server = stack.enter_context(EmbeddedServer())
        stage = Stage(server, Path(folder))
        stack.callback(stage.clear)
        # Called first when the stack unwinds: nothing may interrupt the clearing.
        stack.callback(_deaf)
        _point_at(stage)
        yield stage


def _point_at(stage: Stage) -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "testproject.settings"
    os.environ["REDIS_URL"] = stage.server.url
    os.environ["TESTPROJECT_DB"] = str(stage.folder / "db.sqlite3")
    import django

    django.setup()


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
AGAIN = 0.3
"""Seconds until an interrupt is repeated: Python swallows one that comes amid a finalizer."""


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let a closed terminal and a polite kill do what Ctrl-C does."""
    before = {each: signal.signal(each, _interrupt) for each in SIGNALS}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for each, handler in before.items():
            signal.signal(each, handler)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    signal.setitimer(signal.ITIMER_REAL, AGAIN)
    raise KeyboardInterrupt


def _deaf() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
