"""Searches and lists do not block other clients of the server, with any pattern."""

import random
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import redis

from django_redislock import locks
from django_redislock.keys import Keys
from django_redislock.testing import EmbeddedServer
from tests.filling import fill, fill_history
from tests.pages import DASHBOARD, LIST, user_with
from tests.stalls import Stall, Stalls

SERVER_SECONDS = 0.05
"""Longest time that the server may spend on one round trip."""

WAIT_SECONDS = 1.0
"""Longest time that a second client may wait. It includes the scheduling of two processes."""

COUNT, SIZE = 10_000, 500
"""The number of locks and the length of their names."""

PATTERNS = {
    "any characters, then a letter": "*" + "?" * 250 + "b*",
    "stars and question marks": "*?" * 120 + "*z",
    "letters and stars": "*" + "b*" * 100 + "c*",
}


@pytest.fixture
def url(settings):
    """Use a separate server for the locks, and yield its address."""
    with EmbeddedServer() as server:
        cache = {**settings.CACHES["default"], "LOCATION": server.url}
        settings.CACHES = {**settings.CACHES, "default": cache}
        yield server.url


@pytest.fixture
def viewer(db):
    return user_with("view_activelock")


def test_a_search_does_not_block_other_clients(url, viewer):
    names = held_locks(url)
    operations = {
        "count": lambda: locks.count(),
        "page of 1,000": lambda: locks.page(stop=1000),
        "last page": lambda: locks.page(start=COUNT - 100, stop=COUNT),
        "get_many": lambda: locks.get_many(names[:2000]),
        "active": lambda: list(islice(locks.active(), COUNT)),
        "admin search": lambda: viewer.get(LIST, {"q": PATTERNS["letters and stars"]}),
        "admin list": lambda: viewer.get(LIST),
        "dashboard": lambda: viewer.get(DASHBOARD),
    }
    for what, pattern in PATTERNS.items():
        operations[what] = lambda pattern=pattern: locks.page(pattern)

    assert slow(url, operations) == {}


def test_a_full_history_does_not_block_other_clients(url, viewer):
    full_history(url)
    operations = {
        "dashboard": lambda: viewer.get(DASHBOARD, {"minutes": 60}),
        "history": lambda: locks.history(),
        "history of one lock": lambda: locks.history("model"),
        "whole history": lambda: locks.history(limit=48_000),
        "rates": lambda: locks.rates(),
    }
    assert slow(url, operations) == {}


def slow(url: str, operations: dict[str, Callable[[], Any]]) -> dict[str, Stall]:
    """Return the stalls of the operations that take too long."""
    with Stalls(url) as stalls:
        found = {what: stalls.of(do, below=SERVER_SECONDS) for what, do in operations.items()}
    for what, stall in found.items():
        print(f"{what}: server {stall.server:.3f} s, second client {stall.second_client:.3f} s")
    return {
        what: stall
        for what, stall in found.items()
        if stall.server > SERVER_SECONDS or stall.second_client > WAIT_SECONDS
    }


def full_history(url: str) -> None:
    """Fill the history to its limit, with metadata of almost the maximum size in each event."""
    options = {"timeout": 60, "auto_renewal": False, "metadata": {"note": "x" * 3900}}
    with locks.lock("model", **options):
        assert not locks.lock("model", **options).acquire(blocking=False)
    assert locks.lock("model", **options).acquire()
    assert locks.force_release("model")
    with redis.Redis.from_url(url) as client:
        fill_history(client, "testproject:redislock", "model", 10_000)


def held_locks(url: str) -> list[str]:
    """Make held locks, whose leases end at different times. Return their names."""
    names = [f"{number:08}".ljust(SIZE, "b") for number in range(COUNT)]
    metadata = {"note": "x" * 3900}
    assert locks.lock("model", timeout=3600, auto_renewal=False, metadata=metadata).acquire()
    order = random.Random(0)
    with redis.Redis.from_url(url) as client:
        fill(client, "testproject:redislock", "model", names)
        index = Keys("testproject:redislock").index
        found = [name for name in client.zrange(index, 0, -1) if name]
        client.zadd(index, {name: 9e12 + order.randrange(10**6) for name in found})
    return names
