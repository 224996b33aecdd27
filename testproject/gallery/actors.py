"""Processes that execute orders on a lock, and can be halted right before they send a command."""

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Client
from typing import Any

from testproject.stage import TIMEOUT_SECONDS, DemoError, Stage

from .actor_process import DONE, HALTED


class ActorServer:
    """A process that has imported everything that actors need, and forks them.

    Its supervisor kills every actor that is left when it ends, including paused ones.
    """

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.address = str(stage.folder / "actors.socket")


@contextmanager
def actor_server_on(stage: Stage) -> Iterator[ActorServer]:
    actor_server = ActorServer(stage)
    stage.start("actors", "-m", f"{__package__}.actor_server", actor_server.address)
    stage.wait_for("the actor server", lambda: "ready" in stage.log_of("actors"))
    yield actor_server


class Actor:
    """A process that calls methods of the object that `factory` returns.

    `ahead` is the number of seconds by which its wall clock is ahead of the others.
    """

    def __init__(
        self, actor_server: ActorServer, factory: Callable[[], object], *, ahead: float = 0.0
    ) -> None:
        self.actor_server = actor_server
        self._status: str | None = None
        self._result: Any = None
        self._line = Client(actor_server.address)
        self._line.send((factory, ahead))
        self._pid: int = self._receive()

    def do(self, method: str, *args: Any) -> Any:
        self.begin(method, *args)
        return self.end()

    def begin(self, method: str, *args: Any, halt_before: Iterable[str] = ()) -> None:
        """Start a method, and halt before it sends one of the given commands. If a command is
        named twice, halt before its second use."""
        self._line.send((method, args, tuple(halt_before)))

    def halts(self) -> bool:
        """Wait until the method halts or ends, and return whether it halted."""
        return self._next_status(peek=True) == HALTED

    def resume(self) -> None:
        self._next_status()
        self._line.send(None)

    def has_ended(self) -> bool:
        """Return whether the method has halted or ended."""
        return self._status is not None or self._line.poll()

    def end(self) -> Any:
        """Wait until the method ends, and return its result."""
        status = self._next_status()
        if status != DONE:
            raise DemoError(f"An actor did not finish, but {status}: {self._result}")
        return self._result

    def _next_status(self, *, peek: bool = False) -> str | None:
        if self._status is None:
            self._status, self._result = self._receive()
        status = self._status
        if not peek:
            self._status = None
        return status

    def _receive(self) -> Any:
        if not self._line.poll(TIMEOUT_SECONDS):
            raise DemoError(f"An actor did not respond for {TIMEOUT_SECONDS} s")
        try:
            return self._line.recv()
        except EOFError:
            log = self.actor_server.stage.log_of("actors")
            raise DemoError(f"An actor died\n{log}") from None

    def freeze(self) -> None:
        """Pause all threads with SIGSTOP, as if the machine was suspended."""
        os.kill(self._pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process with SIGKILL, so that it releases nothing. Can be called twice."""
        if self._line.closed:
            return
        with suppress(EOFError, OSError):  # read its last message, until the line ends
            os.kill(self._pid, signal.SIGKILL)
            while True:
                self._line.recv()
        self._line.close()
