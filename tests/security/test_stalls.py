"""No search or listing may keep other clients of the server waiting, whatever its pattern."""

import random
from itertools import islice

import pytest
import redis

from django_redislock import locks
from django_redislock.testing import EmbeddedServer
from tests.filling import fill
from tests.pages import LIST, user_with
from tests.stalls import Stalls

pytestmark = pytest.mark.django_db

SERVER_SECONDS = 0.05
"""Longest time that the server may spend on one round trip."""

WAIT_SECONDS = 1.0
"""Longest time that a second client may wait. It includes the scheduling of two processes."""

PATTERNS = {
    "any characters, then a letter": "*" + "?" * 250 + "b*",
    "any characters, then two letters": "*" + "?" * 20 + "zz*",
    "stars and question marks": "*?" * 120 + "*z",
    "letters and question marks": "*" + "b?" * 100 + "c*",
    "letters and stars": "*" + "b*" * 100 + "c*",
    "every name": "*",
}


@pytest.mark.parametrize(("count", "size"), [(10_000, 500), (100_000, 40)])
def test_no_search_keeps_a_second_client_waiting(settings, count, size):
    viewer = user_with("view_activelock")
    with EmbeddedServer() as server:
        cache = {**settings.CACHES["default"], "LOCATION": server.url}
        settings.CACHES = {**settings.CACHES, "default": cache}
        names = held_locks(server.url, count, size)
        operations = {
            "count": lambda: locks.count(),
            "first page": lambda: locks.page(),
            "page of 1,000": lambda: locks.page(stop=1000),
            "last page": lambda: locks.page(start=count - 100, stop=count),
            "get_many": lambda: locks.get_many(names[:2000]),
            "active": lambda: list(islice(locks.active(), 10_000)),
            "admin": lambda: viewer.get(LIST, {"q": PATTERNS["letters and question marks"]}),
        }
        for what, pattern in PATTERNS.items():
            operations[what] = lambda pattern=pattern: locks.page(pattern)
        with Stalls(server.url) as stalls:
            found = {what: stalls.of(do, below=SERVER_SECONDS) for what, do in operations.items()}
    for what, stall in found.items():
        print(
            f"{count:,} names of {size} bytes, {what}: server {stall.server * 1000:.1f} ms, "
            f"second client {stall.second_client * 1000:.1f} ms"
        )
    assert {what: stall for what, stall in found.items() if stall.server > SERVER_SECONDS} == {}
    assert {w: stall for w, stall in found.items() if stall.second_client > WAIT_SECONDS} == {}


def held_locks(url: str, count: int, size: int) -> list[str]:
    """Make that many held locks, whose leases end at different times. Return their names."""
    names = [f"{number:08}".ljust(size, "b") for number in range(count)]
    metadata = {"note": "x" * 3900} if count <= 10_000 else {}
    assert locks.lock("model", timeout=3600, auto_renewal=False, metadata=metadata).acquire()
    order = random.Random(0)
    with redis.Redis.from_url(url) as client:
        fill(client, "testproject:redislock", "model", names)
        for bucket in range(16):
            index = f"testproject:redislock:{{{bucket}}}:index"
            found = [name for name in client.zrange(index, 0, -1) if name]
            client.zadd(index, {name: 9e12 + order.randrange(10**6) for name in found})
    return names
