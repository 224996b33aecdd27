"""What a process of the crew does: cycles for so many seconds, and how many it came to. They are
those of the package, or replayed: what the package sends for an acquisition and a release is sent
again and again, by many connections of one process, each of which waits for its answer as a client
does.
"""

import math
import select
import socket
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

from django_redislock import locks
from django_redislock.engine import flows
from django_redislock.engine.drivers import _by_digest
from django_redislock.engine.exchange import _packed
from django_redislock.keys import BUCKETS, Keys
from django_redislock.lua import ACQUIRE, RELEASE
from tests.servers import Node


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


OF_EACH = 2  # locks of each bucket that a process takes in turn or, replayed, at a time

Addresses = Mapping[int, tuple[str, int]]  # of the servers that keep the buckets


def prepare(nodes: Iterable[Node]) -> None:
    """Have servers know the scripts."""
    for node in nodes:
        for script in (ACQUIRE, RELEASE):
            node.client().script_load(script.source)


def by_locks(keys: Keys, addresses: Addresses, seconds: float) -> int:
    held = [locks.lock(name) for name in _names(keys)]
    done, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        for lock in held:
            lock.acquire()
            lock.release()
        done += len(held)
    return done


def replayed(keys: Keys, addresses: Addresses, seconds: float) -> int:
    names = _names(keys)
    return replay(keys, [(name, addresses[keys.of(name).bucket]) for name in names], seconds)


def _names(keys: Keys) -> list[str]:
    """Of locks that nobody else asks for, as many of each bucket."""
    left, names = Counter(dict.fromkeys(range(BUCKETS), OF_EACH)), list[str]()
    while left.total():
        name = uuid.uuid4().hex
        if left[keys.of(name).bucket]:
            left[keys.of(name).bucket] -= 1
            names.append(name)
    return names
