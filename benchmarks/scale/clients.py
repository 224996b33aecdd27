"""One process of the benchmark: it runs lock cycles for some seconds, and counts them.

The cycles are real, or replayed. For a replay, many connections of one process repeat the commands
that the package sends for an acquisition and a release. Each connection waits for its reply.
"""

import math
import select
import socket
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from uuid import uuid4

from redis import Connection

from django_redislock import locks
from django_redislock.engine import protocol
from django_redislock.engine.operations import Call
from django_redislock.engine.runners import _evalsha
from django_redislock.keys import BUCKETS, Keys
from django_redislock.lua import ACQUIRE, RELEASE
from tests.servers import Node

OF_EACH = 2  # locks of each bucket and process, used in turn or, if replayed, at the same time

Addresses = Mapping[int, tuple[str, int]]  # of the servers with the buckets


def prepare(nodes: Iterable[Node]) -> None:
    """Load the scripts into the servers."""
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
    lines = {}
    for name in _names(keys):
        line = Line(keys, name, addresses[keys.of(name).bucket])
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


class Line:
    """A connection, and the lock that it acquires and releases."""

    def __init__(self, keys: Keys, name: str, address: tuple[str, int]) -> None:
        of_name, token = keys.of(name), uuid4().hex
        request = locks.lock(name)._request(of_name, token)
        self._acquire = _packed(next(protocol.acquire(request, -math.inf)))
        self._release = _packed(next(protocol.release(of_name, token)))
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


def _packed(call: Call) -> bytes:
    return b"".join(Connection().pack_command(*_evalsha(call)))


def _names(keys: Keys) -> list[str]:
    """Return unique names of locks, the same number for each bucket."""
    left, names = Counter(dict.fromkeys(range(BUCKETS), OF_EACH)), list[str]()
    while left.total():
        name = uuid4().hex
        if left[keys.of(name).bucket]:
            left[keys.of(name).bucket] -= 1
            names.append(name)
    return names
