"""The connections of threads: a thread takes one, sends, reads, and puts it back.

Only the public API of redis-py is used. An error that Redis replies with is a value like other
replies.
"""

import os
import queue
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

from redis.exceptions import ConnectionError, InvalidResponse, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..backends import Endpoint
from ..backends.cluster import is_readonly
from ..conf import conf
from . import helper_threads
from .operations import Command
from .timing import MIN_REPLY_SECONDS
from .wire import PARSER_ERRORS, UNREADABLE, pack


class ThreadLink:
    """The connections of one user, such as all callers or the renewal, to the servers of a client.

    Args:
        size: The maximum number of connections to each server. None means the number in the
            settings.
    """

    def __init__(self, size: int | None = None) -> None:
        self._size = size
        self._by_node: WeakKeyDictionary[Any, ThreadConnections] = WeakKeyDictionary()

    def connections(self, node: Any) -> "ThreadConnections":
        """Return the connections to the server of a client."""
        pool = node.connection_pool
        found = self._by_node.get(pool)
        if found is not None and found.pid == os.getpid():  # uWSGI forks without Python's hooks
            return found
        made = ThreadConnections(Endpoint(node), self._size)
        if found is not None:
            self._by_node.pop(pool, None)
        # Threads that ask at the same time get the same connections, or they would open more.
        return self._by_node.setdefault(pool, made)

    def close(self) -> None:
        """Close the connections that are not in use."""
        for connections in list(self._by_node.values()):
            connections.close()


class _Permit(tuple["ref[ThreadConnections]"]):
    """The right to use one connection.

    A thread puts it back. If an interrupt keeps it from that, the permit is garbage, and is
    replaced by a new one. It is a tuple, because C makes one in a single step, which no interrupt
    divides.
    """

    __slots__ = ()

    def __del__(self) -> None:
        [owner] = self
        connections = owner()
        if connections is not None:
            connections.add_permit()


class _Connected(NamedTuple):
    """A connection, and what shows whether it can be used again."""

    connection: Any
    generation: int
    primary: object
    idle_since: float = 0.0


class ThreadConnections:
    """At most a number of connections to one server. The last one that was used is the next.

    Each step that changes it is a single call in C, so that no interrupt divides it.
    """

    def __init__(self, endpoint: Endpoint, size: int | None) -> None:
        self.pid = os.getpid()
        self._endpoint = endpoint
        self._size = size or min(conf.max_connections, endpoint.max_connections)
        self._generation = 0
        self._idle: deque[_Connected] = deque()
        self._permits: queue.SimpleQueue[_Permit] = queue.SimpleQueue()
        for _ in range(self._size):
            self.add_permit()

    def add_permit(self) -> None:
        self._permits.put(_Permit([ref(self)]))

    def call(
        self, commands: Sequence[Command], deadline: float | None, *, once: bool
    ) -> list[Any]:
        packed = pack(commands)
        if deadline is not None or once:
            return self._call(packed, len(commands), deadline, once)
        replies: list[Any] = self._endpoint.retry.call_with_retry(
            partial(self._call, packed, len(commands), None, False), _ignore
        )
        return replies

    def close(self) -> None:
        """Close the connections that are not in use, and the others after their use."""
        self._generation += 1
        with suppress(IndexError):
            while True:
                self._idle.pop().connection.disconnect()

    def _call(self, packed: bytes, count: int, deadline: float | None, once: bool) -> list[Any]:
        permit = self._take_permit(deadline)
        try:
            # While a connection is in use, only this frame has it. So whatever interrupts the
            # frame, nobody else ever reads from the connection.
            used = self._take_idle(check=once)
            replies = None
            if used:
                try:
                    replies = _exchange(used.connection, packed, count, deadline)
                except ConnectionError:  # the server may have closed it
                    if once:
                        raise
            if used is None or replies is None:
                used = self._connect(deadline)
                replies = _exchange(used.connection, packed, count, deadline)
            if any(map(is_readonly, replies)):  # new connections may lead to the new primary
                self.close()
            if used.generation == self._generation:
                self._idle.append(used._replace(idle_since=time.monotonic()))
            else:
                used.connection.disconnect()
            return replies
        finally:
            self._permits.put(permit)

    def _take_permit(self, deadline: float | None) -> _Permit:
        left = None if deadline is None else max(deadline - time.monotonic(), 0)
        try:
            return self._permits.get(timeout=left)
        except queue.Empty:
            raise RedisTimeoutError(
                f"All {self._size} connections for locks were in use until the time was over"
            ) from None

    def _take_idle(self, *, check: bool) -> _Connected | None:
        """Return the connection that was used last, or None if a new one is needed."""
        try:
            used = self._idle.pop()
        except IndexError:
            return None
        is_usable = (
            time.monotonic() < used.idle_since + self._endpoint.max_idle
            and used.primary == self._endpoint.primary
            and not (check and _is_broken(used.connection))
        )
        if is_usable:
            return used
        used.connection.disconnect()
        return None

    def _connect(self, deadline: float | None) -> _Connected:
        generation = self._generation
        primary = self._endpoint.primary
        connection = self._endpoint.new_connection()
        left = None if deadline is None else max(deadline - time.monotonic(), 0)
        try:
            helper_threads.connect(connection, left)
        except PARSER_ERRORS:
            raise InvalidResponse(UNREADABLE) from None
        return _Connected(connection, generation, primary)


def _exchange(connection: Any, packed: bytes, count: int, deadline: float | None) -> list[Any]:
    if deadline is not None:
        # It may have passed, because this process was stopped.
        deadline = max(deadline, time.monotonic() + MIN_REPLY_SECONDS)
    try:
        connection.send_packed_command([packed], check_health=False)
        replies = []
        for _ in range(count):
            if deadline is not None:
                # A signal can end the first wait too early, also if it stopped the process. A
                # reply that has arrived by then counts.
                left = max(0, deadline - time.monotonic())
                if not (connection.can_read(left) or connection.can_read(0)):
                    raise RedisTimeoutError("Redis did not respond in time")
            try:
                # As bytes: one reply that cannot be decoded would hide all other replies.
                replies.append(connection.read_response(disable_decoding=True))
            except ResponseError as error:
                replies.append(error.with_traceback(None))  # its frames would keep a lock alive
            except PARSER_ERRORS:
                raise InvalidResponse(UNREADABLE) from None
        return replies
    except BaseException:
        connection.disconnect()
        raise


def _is_broken(connection: Any) -> bool:
    """Return whether the server has closed a connection that is not in use."""
    try:
        return bool(connection.can_read(0))
    except ConnectionError:
        return True


def _ignore(error: Exception) -> None:
    """The connection was closed already."""
