"""An answer that comes soon is waited for awake.

To fall asleep and be woken takes longer than a server that is near takes to answer, above all on
a virtual machine, and the processor forgets meanwhile what it was about. So who asks looks out for
the answer for a moment before it sleeps: the two-phase waiting of Ousterhout (1982). Of a server
whose answers take longer that is tried less and less often.
"""

import asyncio
import os
import select
import time
from types import BuiltinFunctionType
from typing import Any
from weakref import WeakKeyDictionary

AWAKE = 0.0002
"""Seconds until it sleeps."""

MOST = 65536
"""Bytes of an answer that are read at once."""

RARELY = 64
"""Questions without it, at most, between two answers that are looked out for."""


class Distance:
    """How soon the answers by one connection come."""

    __slots__ = ("_asleep", "_more")

    def __init__(self) -> None:
        self._asleep = 0
        self._more = 1

    def is_worth_a_look(self) -> bool:
        if self._asleep:
            self._asleep -= 1
            return False
        return True

    def was(self, short: bool) -> None:
        if short:
            self._more = 1
        else:
            self._asleep = self._more
            self._more = min(self._more * 2, RARELY)


_distances: WeakKeyDictionary[Any, Distance] = WeakKeyDictionary()


def look_out(connection: Any) -> None:
    """Return when the answer is there, or it is time to sleep. Other threads and processes may
    run meanwhile."""
    if socket := getattr(connection, "_sock", None):  # a client-side cache has it inside
        _is_seen(connection, socket)


def look_out_on_loop(connection: Any) -> None:
    """The same by a connection of asyncio, unless anybody else on the loop has something to do.
    What came is given to the reader at once, and not on the loop's next turn but one."""
    ready = getattr(asyncio.get_running_loop(), "_ready", None)
    if ready is None or ready or connection._writer.get_extra_info("ssl_object"):
        return
    socket = connection._writer.get_extra_info("socket")
    if _is_seen(connection, socket) and (came := _read(socket)):
        connection._reader.feed_data(came)


def _read(socket: Any) -> bytes:
    try:
        return os.read(socket.fileno(), MOST)
    except OSError:  # who waits for it will be told
        return b""


def _is_seen(connection: Any, socket: Any) -> bool:
    if not isinstance(getattr(select, "poll", None), BuiltinFunctionType):
        return False  # it would hold up other greenlets
    distance = _distances.get(connection) or _distances.setdefault(connection, Distance())
    if not distance.is_worth_a_look():
        return False
    seen = _comes_soon(socket)
    distance.was(seen)
    return seen


def _comes_soon(socket: Any) -> bool:
    look = select.poll()
    try:
        look.register(socket, select.POLLIN)
    except (TypeError, ValueError):  # it was closed meanwhile, as who reads will tell
        return True
    until = time.monotonic() + AWAKE
    while not look.poll(0):
        if time.monotonic() > until:
            return False
        os.sched_yield()
    return True
