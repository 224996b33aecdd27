"""No search or listing may keep other clients of the server waiting, whatever its pattern."""

import random
from contextlib import ExitStack
from itertools import islice

import pytest
import redis

from django_redislock import locks
from django_redislock.testing import EmbeddedServer
from tests.filling import fill, fill_history
from tests.pages import DASHBOARD, LIST, user_with
from tests.stalls import Stall, Stalls
from tests.tools import Child

pytestmark = pytest.mark.django_db

SERVER_SECONDS = 0.05
"""Longest time that the server may spend on one round trip."""

WAIT_SECONDS = 1.0
"""Longest time that a second client may wait. It includes the scheduling of two processes."""

PAGE_MEGABYTES = 60
"""How much memory the dashboard may take."""

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
    check(f"{count:,} names of {size} bytes", found)


def test_a_full_history_keeps_no_second_client_waiting(settings):
    viewer = user_with("view_activelock")
    with EmbeddedServer() as server:
        cache = {**settings.CACHES["default"], "LOCATION": server.url}
        settings.CACHES = {**settings.CACHES, "default": cache}
        full_history(server.url)
        operations = {
            "dashboard": lambda: viewer.get(DASHBOARD, {"minutes": 60}),
            "history": lambda: locks.history(),
            "history of one lock": lambda: locks.history("model"),
            "whole history": lambda: locks.history(limit=48_000),
            "rates": lambda: locks.rates(),
        }
        with Stalls(server.url) as stalls:
            found = {what: stalls.of(do, below=SERVER_SECONDS) for what, do in operations.items()}
    check("full history", found)


PAGE = """
import threading, time, psutil
from django.conf import settings
from django.test import Client
session, address = sys.argv[1:]
settings.ALLOWED_HOSTS = ["testserver"]
client = Client()
client.cookies[settings.SESSION_COOKIE_NAME] = session
assert client.get(address).status_code == 200  # imports what a page needs
say("ready")
hear()
memory = psutil.Process().memory_info
before, peak, is_done = memory().rss, 0, threading.Event()
def watch():
    global peak
    while not is_done.wait(0.005):
        peak = max(peak, memory().rss)
watching = threading.Thread(target=watch)
watching.start()
response = client.get(address)
is_done.set()
watching.join()
say(f"page {response.status_code} {len(response.content)} {(peak - before) / 1e6:.1f}")
"""


@pytest.mark.django_db(transaction=True)
def test_the_dashboard_of_a_full_history_takes_little_memory(settings):
    session = user_with("view_activelock").cookies["sessionid"].value
    with EmbeddedServer() as server, ExitStack() as stack:
        cache = {**settings.CACHES["default"], "LOCATION": server.url}
        settings.CACHES = {**settings.CACHES, "default": cache}
        address = f"{DASHBOARD}?minutes=60"
        child = stack.enter_context(Child(PAGE, session, address, REDIS_URL=server.url))
        child.expect("ready")
        full_history(server.url)
        child.tell()
        status, _, megabytes = child.expect("page").split()
    print(f"the dashboard took {megabytes} MB")
    assert status == "200"
    assert float(megabytes) < PAGE_MEGABYTES


def full_history(url: str) -> None:
    """Fill the history with what is kept at most, each event with nearly the longest metadata."""
    options = {"timeout": 60, "auto_renewal": False, "metadata": {"note": "x" * 3900}}
    with locks.lock("model", **options):
        assert not locks.lock("model", **options).acquire(blocking=False)
    assert locks.lock("model", **options).acquire()
    assert locks.force_release("model")
    with redis.Redis.from_url(url) as client:
        fill_history(client, "testproject:redislock", "model", 1000)


def check(about: str, stalls: dict[str, Stall]) -> None:
    for what, stall in stalls.items():
        print(
            f"{about}, {what}: server {stall.server * 1000:.1f} ms, "
            f"second client {stall.second_client * 1000:.1f} ms"
        )
    assert {w: stall for w, stall in stalls.items() if stall.server > SERVER_SECONDS} == {}
    assert {w: stall for w, stall in stalls.items() if stall.second_client > WAIT_SECONDS} == {}


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
