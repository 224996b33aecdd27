"""Processes that play a part: each has a lock, does what it is told, and can be made to stand
still right before it sends a command to the server."""

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Client
from typing import Any

from testproject.stage import PATIENCE, Failed, Stage

from .playing import DONE, HALTED


class Home:
    """Where actors come from: a process that has imported all that they need, and forks them.

    None of them outlives it, not even one that stands still: its keeper sees to that.
    """

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.address = str(stage.folder / "home.socket")


@contextmanager
def home_on(stage: Stage) -> Iterator[Home]:
    home = Home(stage)
    stage.start("home", "-m", f"{__package__}.home", home.address)
    stage.wait_for("the actors' home", lambda: "ready" in stage.log_of("home"))
    yield home


class Actor:
    """A process that plays `part`: `what` it is told to do are the part's methods.

    `ahead` are the seconds by which its wall clock is ahead of the others'.
    """

    def __init__(self, home: Home, part: Callable[[], object], *, ahead: float = 0.0) -> None:
        self.home = home
        self._heard: str | None = None
        self._told: Any = None
        self._line = Client(home.address)
        self._line.send((part, ahead))
        self._pid: int = self._receive()

    def do(self, what: str, *args: Any) -> Any:
        self.begin(what, *args)
        return self.end()

    def begin(self, what: str, *args: Any, halt_before: Iterable[str] = ()) -> None:
        """Let it do that, and stand still before the first of these commands that it sends; of
        one that is named twice, before the second."""
        self._line.send((what, args, tuple(halt_before)))

    def halts(self) -> bool:
        """Wait until it stands still, and say so; False if it has come to the end without."""
        return self._hear(peek=True) == HALTED

    def go_on(self) -> None:
        self._hear()
        self._line.send(None)

    def has_ended(self) -> bool:
        """Whether it stands still, or has come to the end."""
        return self._heard is not None or self._line.poll()

    def end(self) -> Any:
        """What the method answered."""
        word = self._hear()
        if word != DONE:
            raise Failed(f"An actor was to come to the end, and {word}: {self._told}")
        return self._told

    def _hear(self, *, peek: bool = False) -> str | None:
        if self._heard is None:
            self._heard, self._told = self._receive()
        word, self._heard = self._heard, self._heard if peek else None
        return word

    def _receive(self) -> Any:
        if not self._line.poll(PATIENCE):
            raise Failed(f"An actor said nothing for {PATIENCE} s")
        try:
            return self._line.recv()
        except EOFError:
            raise Failed(f"An actor died\n{self.home.stage.log_of('home')}") from None

    def freeze(self) -> None:
        """SIGSTOP: all its threads stand still, as in a pause of its machine."""
        os.kill(self._pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL: it has no chance to give anything back. Once killed, does nothing."""
        if self._line.closed:
            return
        with suppress(EOFError, OSError):  # what it said last, and then that it is dead
            os.kill(self._pid, signal.SIGKILL)
            while True:
                self._line.recv()
        self._line.close()
