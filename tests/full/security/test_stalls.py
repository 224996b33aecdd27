"""Searches and lists do not block other clients of the server, with any pattern."""

import os
import random
import tracemalloc
from collections.abc import Callable
from functools import partial
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.management import call_command

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

PAGE_MEGABYTES = 50
"""Limit for Python's memory of a page or a command."""

PATTERNS = {
    "any characters, then a letter": "*" + "?" * 250 + "b*",
    "any characters, then two letters": "*" + "?" * 20 + "zz*",
    "stars and question marks": "*?" * 120 + "*z",
    "letters and question marks": "*" + "b?" * 100 + "c*",
    "letters and stars": "*" + "b*" * 100 + "c*",
    "every name": "*",
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


@pytest.mark.parametrize(("count", "size"), [(10_000, 500), (100_000, 40)])
def test_a_search_does_not_block_other_clients(url, viewer, count, size):
    names = held_locks(url, count, size)
    operations = {
        "count": lambda: locks.count(),
        "first page": lambda: locks.page(),
        "page of 1,000": lambda: locks.page(stop=1000),
        "last page": lambda: locks.page(start=count - 100, stop=count),
        "get_many": lambda: locks.get_many(names[:2000]),
        "active": lambda: list(islice(locks.active(), 10_000)),
        "admin search": lambda: viewer.get(LIST, {"q": PATTERNS["letters and question marks"]}),
        "admin list": lambda: viewer.get(LIST),
        "dashboard": lambda: viewer.get(DASHBOARD),
    }
    for what, pattern in PATTERNS.items():
        operations[what] = lambda pattern=pattern: locks.page(pattern)

    assert slow(url, operations) == {}
    command = partial(call_command, "locks", stdout=StringIO())
    bounded = [partial(command, "list"), partial(command, "release", stale=True)]
    bounded += [operations[page] for page in ("admin search", "admin list", "dashboard")]
    # These have records of the maximum size. Only the last one depends on their number.
    for operation in bounded if count <= 10_000 else ():
        assert peak_megabytes(operation) < PAGE_MEGABYTES
    with Path(os.devnull).open("w") as output:
        release_all = partial(command, "release", all=True, dry_run=True, stdout=output)
        assert peak_megabytes(release_all) < PAGE_MEGABYTES


def test_a_full_history_does_not_block_other_clients_and_takes_little_memory(url, viewer):
    operations = {
        "dashboard": lambda: viewer.get(DASHBOARD, {"minutes": 60}),
        "history": lambda: locks.history(),
        "history of one lock": lambda: locks.history("model"),
        "whole history": lambda: locks.history(limit=48_000),
        "rates": lambda: locks.rates(),
    }
    search = partial(call_command, "locks", "history", pattern="no*", stdout=StringIO())
    viewer.get(DASHBOARD)  # imports the modules of the page
    search()
    full_history(url)

    assert slow(url, operations) == {}
    assert peak_megabytes(operations["dashboard"]) < PAGE_MEGABYTES
    assert peak_megabytes(search) < PAGE_MEGABYTES


def peak_megabytes(do: Callable[[], Any]) -> float:
    tracemalloc.start()
    try:
        do()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    print(f"it took {peak / 1e6:.1f} MB")
    return peak / 1e6


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


def held_locks(url: str, count: int, size: int) -> list[str]:
    """Make that many held locks, whose leases end at different times. Return their names."""
    names = [f"{number:08}".ljust(size, "b") for number in range(count)]
    metadata = {"note": "x" * 3900} if count <= 10_000 else {}
    assert locks.lock("model", timeout=3600, auto_renewal=False, metadata=metadata).acquire()
    order = random.Random(0)
    with redis.Redis.from_url(url) as client:
        fill(client, "testproject:redislock", "model", names)
        index = Keys("testproject:redislock").index
        found = [name for name in client.zrange(index, 0, -1) if name]
        client.zadd(index, {name: 9e12 + order.randrange(10**6) for name in found})
    return names
