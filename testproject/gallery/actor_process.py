"""The program that runs in the process of an actor."""

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
    """Execute orders from the line until it ends, and then exit without cleanup."""
    try:
        _play(line)
    except EOFError:
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def _play(line: Line) -> NoReturn:
    logging.disable()  # results and errors are sent over the line
    factory, ahead = line.recv()
    line.send(os.getpid())
    if ahead:
        _set_clock_ahead(ahead)
    _requests.watch(line)
    target = factory()
    while True:
        method, args, halt_before = line.recv()
        _requests.halt_before = Counter(halt_before)
        try:
            reply = DONE, getattr(target, method)(*args)
        except Exception as error:
            reply = RAISED, repr(error)
        line.send(reply)


def _set_clock_ahead(seconds: float) -> None:
    real_time = time.time
    time.time = lambda: real_time() + seconds


class _Requests:
    """Counts the requests that this process sends, and halts its main thread before a chosen
    command until the actor resumes it."""

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
    """Mark a place in an actor's code, other than a command, where the actor can be halted."""
    _requests.reach(mark)


def _name_of(packed: Any) -> str:
    """Return the first command of a request, such as ``*2\\r\\n$3\\r\\nGET\\r\\n...``."""
    request = packed if isinstance(packed, bytes) else b"".join(map(bytes, packed))
    return request.split(b"\r\n", 3)[2].decode()
