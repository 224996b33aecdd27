"""Cycles that are asked for as fast as a server answers: what the package sends for an acquisition
and a release is sent again and again, by many connections of one process, each of which waits for
its answer as a client does."""

import math
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

from django_redislock import locks
from django_redislock.engine import flows
from django_redislock.engine.drivers import _by_digest
from django_redislock.engine.exchange import _packed
from django_redislock.keys import Keys


@dataclass(slots=True)
class Line:
    """A connection, and the lock that it takes and lets go of."""

    socket: socket.socket
    acquire: bytes
    release: bytes
    holds: bool = False

    def begin(self) -> None:
        self.socket.sendall(self.acquire)

    def go_on(self) -> bool:
        """Take the answer, and say whether that ended a cycle; else the lock is let go of."""
        answer = self.socket.recv(4096)
        self.holds = not self.holds
        number = int(answer.removeprefix(b":"))  # a fencing token, or that it was released
        assert number > 1 if self.holds else number == 1, answer
        if self.holds:
            self.socket.sendall(self.release)
        return not self.holds


def replay(keys: Keys, addresses: Sequence[tuple[str, tuple[str, int]]], seconds: float) -> int:
    """How often all of these locks together were taken and let go of. Each is named with the
    address of its server."""
    lines = {}
    for name, address in addresses:
        line = _line(keys, name, address)
        lines[line.socket.fileno()] = line
    polling = select.epoll()
    for number, line in lines.items():
        polling.register(number, select.EPOLLIN)
        line.begin()
    done, busy, end = 0, len(lines), time.monotonic() + seconds
    while busy:
        is_over = time.monotonic() >= end
        for number, _ in polling.poll():
            if not lines[number].go_on():
                continue
            done += 1
            if is_over:
                busy -= 1
            else:
                lines[number].begin()
    for line in lines.values():
        line.socket.close()
    return done


def _line(keys: Keys, name: str, address: tuple[str, int]) -> Line:
    of_name, token = keys.of(name), uuid4().hex
    want = locks.lock(name)._want(of_name, token)
    acquire = next(flows.acquire(want, -math.inf))
    release = next(flows.release(of_name, token))
    connection = socket.create_connection(address)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Line(connection, _packed([_by_digest(acquire)]), _packed([_by_digest(release)]))
