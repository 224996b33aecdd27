"""Five servers of a quorum, some or most of which a test kills or pauses."""

import contextlib
import os
import signal
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from django_redislock import locks
from django_redislock.engine import protocol
from django_redislock.lock_types import quorum as primitive

from .lock_fixtures import CORE
from .servers import Node
from .tools import leftovers, wait_until

ALL = ["q0", "q1", "q2", "q3", "q4"]
THREE = ALL[:3]

BOUND = 4.5
"""Time limit for calls with unresponsive servers, also on a busy machine."""


class Five:
    """The servers of the aliases q0 to q4. They can be killed, started empty and paused."""

    def __init__(self) -> None:
        self.servers = [Node() for _ in ALL]
        self.away: set[int] = set()
        self._together(Node.start, self.servers)
        self.clients = [
            redis.Redis.from_url(server.url, decode_responses=True) for server in self.servers
        ]

    def kill(self, *numbers: int) -> None:
        for number in numbers:
            self.servers[number].kill()
            self.away.add(number)

    def start(self, *numbers: int) -> None:
        """Start servers again, without their data."""
        self._together(Node.start, [self.servers[number] for number in numbers])
        self.away.difference_update(numbers)

    @contextlib.contextmanager
    def hanging(self, *numbers: int) -> Iterator[None]:
        pids = [self.servers[number].pid for number in numbers]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def left(self) -> list[list[str]]:
        """Return the remaining locks and waiters of each running server."""
        there = [client for n, client in enumerate(self.clients) if n not in self.away]
        for client in there:
            _forget_what_ran_out(client)
        return [leftovers(client) for client in there]

    async def has_none_left(self) -> bool:
        return not any(self.left())

    def none_left(self, *, timeout: float = 2) -> None:
        wait_until(lambda: not any(self.left()), timeout=timeout)

    def tidy(self) -> None:
        self.start(*self.away)
        for client in self.clients:
            client.flushall()

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self._together(Node.close, self.servers)

    @staticmethod
    def _together(do, servers):
        with ThreadPoolExecutor(len(ALL)) as threads:
            list(threads.map(do, servers))


def _forget_what_ran_out(client):
    # The next read of an index would do the same.
    for index in client.keys("*:index"):
        client.zremrangebyscore(index, "-inf", time.time() * 1000)


@pytest.fixture(scope="module")
def all_five() -> Iterator[Five]:
    five = Five()
    yield five
    five.close()


REPLY_SECONDS, REPLY_FRACTION = primitive.QUORUM_REPLY_SECONDS, primitive.QUORUM_REPLY_FRACTION
GRACE = protocol.FINAL_REPLY_TIMEOUT_SECONDS


@pytest.fixture
def five(all_five, settings, monkeypatch) -> Iterator[Five]:
    """Five servers that the test may break. It must leave no key on the running ones. Long
    timeouts, so that a busy machine does not make a server unreachable."""
    settings.CACHES = {
        **settings.CACHES,
        **{
            alias: {"BACKEND": CORE, "LOCATION": server.url, "KEY_PREFIX": "own"}
            for alias, server in zip(ALL, all_five.servers, strict=True)
        },
    }
    monkeypatch.setattr(primitive, "QUORUM_REPLY_SECONDS", 10.0)
    monkeypatch.setattr(primitive, "QUORUM_REPLY_FRACTION", 0.3)
    yield all_five
    try:
        all_five.none_left(timeout=3)
    finally:
        all_five.tidy()


@pytest.fixture
def hanging(five, monkeypatch):
    """Return a context manager that pauses servers, for quorums with the usual timeouts."""
    monkeypatch.setattr(primitive, "QUORUM_REPLY_SECONDS", REPLY_SECONDS)
    monkeypatch.setattr(primitive, "QUORUM_REPLY_FRACTION", REPLY_FRACTION)
    monkeypatch.setattr(protocol, "FINAL_REPLY_TIMEOUT_SECONDS", GRACE)
    return five.hanging


def quorum(name="a", using=ALL, **options):
    return locks.quorum(name, using, **{"timeout": 30, **options})


def alone(alias, name="a", **options):
    """Return a lock that another quorum has on one server."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return quorum(name, [alias], **options)


def at(alias, name="a"):
    return locks.using(alias).get(name)


def holders(five, name="a"):
    """Return the aliases on which the lock is held."""
    return [
        alias
        for number, alias in enumerate(ALL)
        if number not in five.away and (info := at(alias, name)) and info.holders
    ]
