"""One process of the benchmark: it runs lock cycles for some seconds, and counts them.

The cycles are real, or replayed. For a replay, many connections of one process repeat what the
package sends for an acquisition and a release. Each connection waits for its reply.
"""

import select
import socket
import time
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch
from uuid import uuid4

from redis import Connection

from django_redislock import locks

Addresses = Mapping[str, tuple[str, int]]  # of the servers, by cache alias


prepared: "list[Line]" = []


def prepare(addresses: Addresses, number: int) -> None:
    """Prepare a number of locks of each alias, with unique names."""
    prepared.clear()
    for alias, address in addresses.items():
        for _ in range(number):
            lock = locks.using(alias).lock(uuid4().hex, timeout=600, auto_renewal=False)
            prepared.append(Line(lock, address))


def by_locks(seconds: float) -> int:
    """Use the locks in turn."""
    done, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        for line in prepared:
            line.lock.acquire()
            line.lock.release()
        done += len(prepared)
    return done


def replayed(seconds: float) -> int:
    """Use the locks at the same time."""
    lines = {line.socket.fileno(): line for line in prepared}
    polling = select.epoll()
    for file, line in lines.items():
        polling.register(file, select.EPOLLIN)
        line.begin()
    done, busy, end = 0, len(lines), time.monotonic() + seconds
    while busy:
        is_over = time.monotonic() >= end
        for file, _ in polling.poll():
            if not lines[file].go_on():
                continue
            done += 1
            if is_over:
                busy -= 1
            else:
                lines[file].begin()
    return done


class Line:
    """A connection, and the lock that it acquires and releases."""

    def __init__(self, lock: Any, address: tuple[str, int]) -> None:
        with lock:
            pass  # connects, and the server has the scripts from now on
        self.lock = lock
        self._acquire, self._release = _sent_by(lock.acquire), _sent_by(lock.release)
        self._holds = False
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def begin(self) -> None:
        self.socket.sendall(self._acquire)

    def go_on(self) -> bool:
        """Read the reply, and return whether it ends a cycle. Otherwise release the lock."""
        answer = self.socket.recv(4096)
        self._holds = not self._holds
        number = int(answer.removeprefix(b":"))  # a fencing token, or 1 for a release
        assert number > 1 if self._holds else number == 1, answer
        if self._holds:
            self.socket.sendall(self._release)
        return not self._holds


def _sent_by(call: Any) -> bytes:
    """Return what a call sends to Redis."""
    sent: list[bytes] = []
    send = Connection.send_packed_command

    def record(connection: Any, command: Any, **options: Any) -> None:
        sent.extend(command)
        send(connection, command, **options)

    with patch.object(Connection, "send_packed_command", record):
        assert call() is not False
    [packed] = sent
    return packed
