"""What runs in an actor's process."""

import logging
import os
import threading
import time
import traceback
from collections import Counter
from multiprocessing.connection import Connection as Line
from typing import Any, NoReturn

from redis.connection import Connection

HALTED, DONE, RAISED = "halted", "done", "raised"


def play(line: Line) -> NoReturn:
    """Do what is told on the line, until it ends, and then end without a trace."""
    try:
        _play(line)
    except EOFError:
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def _play(line: Line) -> NoReturn:
    logging.disable()  # what becomes of a lock is told by its answers
    part, ahead = line.recv()
    line.send(os.getpid())
    if ahead:
        _set_clock_ahead(ahead)
    _requests.watch(line)
    player = part()
    while True:
        what, args, halt_before = line.recv()
        _requests.halt_before = Counter(halt_before)
        try:
            answer = DONE, getattr(player, what)(*args)
        except Exception as error:
            answer = RAISED, repr(error)
        line.send(answer)


def _set_clock_ahead(seconds: float) -> None:
    right = time.time
    time.time = lambda: right() + seconds


class _Requests:
    """What this process sends to servers: how much, and where its main thread stands still until
    it is told to go on."""

    sent = 0

    def __init__(self) -> None:
        self.halt_before: Counter[str] = Counter()
        self.line: Line | None = None

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
        if not self.line or mark not in self.halt_before:
            return
        self.halt_before[mark] -= 1
        if not self.halt_before[mark]:
            self.halt_before.clear()
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
