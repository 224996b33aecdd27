"""Processes that play a part: each has a lock, does what it is told, and can be made to stand
still right before it sends a command to the server."""

import contextlib
import ctypes
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Collection
from multiprocessing import get_context
from multiprocessing.connection import Connection as Line
from typing import Any

from redis.connection import Connection

from testproject.stage import PATIENCE, Failed

# Forked of one process that has imported all that they need, they start within milliseconds.
_context = get_context("forkserver")

HALTED, DONE, RAISED = "halted", "done", "raised"


class Actor:
    """A process that plays `part`: `what` it is told to do are the part's methods.

    `ahead` are the seconds by which its wall clock is ahead of the others'.
    """

    def __init__(self, part: Callable[[], object], *, ahead: float = 0.0) -> None:
        _context.set_forkserver_preload([f"{__package__}.preloaded"])
        self._line, theirs = _context.Pipe()
        self._process = _context.Process(target=_play, args=(theirs, part, ahead), daemon=True)
        self._process.start()
        theirs.close()
        self._heard: str | None = None
        self._told: Any = None

    def do(self, what: str, *args: Any) -> Any:
        self.begin(what, *args)
        return self.end()

    def begin(self, what: str, *args: Any, halt_before: Collection[str] = ()) -> None:
        """Let it do that, and stand still before the first of these commands that it sends."""
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

    def _hear(self, *, peek: bool = False) -> str:
        if self._heard is None:
            if not self._line.poll(PATIENCE):
                raise Failed(f"An actor said nothing for {PATIENCE} s")
            try:
                self._heard, self._told = self._line.recv()
            except EOFError:
                raise Failed("An actor died") from None
        word, self._heard = self._heard, self._heard if peek else None
        return word

    def freeze(self) -> None:
        """SIGSTOP: all its threads stand still, as in a pause of its machine."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """SIGKILL: it has no chance to give anything back."""
        self._process.kill()
        self._process.join()
        self._line.close()


# What follows runs in the process.


def _play(line: Line, part: Callable[[], object], ahead: float) -> None:
    _die_with_the_gallery()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable()  # what becomes of a lock is told by its answers
    if ahead:
        _set_clock_ahead(ahead)
    _requests.watch(line)
    player = part()
    while True:
        try:
            what, args, _requests.halt_before = line.recv()
        except EOFError:
            return
        try:
            answer = DONE, getattr(player, what)(*args)
        except Exception as error:
            answer = RAISED, repr(error)
        line.send(answer)


def _die_with_the_gallery() -> None:
    """Also while it is stopped, where the system can do so."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _set_clock_ahead(seconds: float) -> None:
    right = time.time
    time.time = lambda: right() + seconds


class _Requests:
    """What this process sends to servers: how much, and where its main thread stands still until
    it is told to go on."""

    sent = 0
    halt_before: Collection[str] = ()
    line: Line | None = None

    def watch(self, line: Line) -> None:
        self.line = line
        send: Any = Connection.send_packed_command

        def send_watched(connection: Any, packed: Any, *args: Any, **options: Any) -> Any:
            if self.halt_before and threading.current_thread() is threading.main_thread():
                self.reach(_name_of(packed))
            self.sent += 1
            return send(connection, packed, *args, **options)

        Connection.send_packed_command = send_watched  # type: ignore[method-assign,assignment]

    def reach(self, mark: str) -> None:
        if self.line and mark in self.halt_before:
            self.halt_before = ()
            self.line.send((HALTED, mark))
            self.line.recv()


_requests = _Requests()


def requests_sent() -> int:
    return _requests.sent


def reach(mark: str) -> None:
    """Called by a part: a place in it that is none of a command, where it can be halted."""
    _requests.reach(mark)


def _name_of(packed: Any) -> str:
    """The first command of a request: ``*2\\r\\n$3\\r\\nGET\\r\\n...``."""
    request = packed if isinstance(packed, bytes) else b"".join(map(bytes, packed))
    return request.split(b"\r\n", 3)[2].decode()
