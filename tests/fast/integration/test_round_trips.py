"""The cost of each operation: round trips, commands from clients (which are in a table of the
documentation), and commands that the scripts call."""

import contextlib
import re
from contextlib import ExitStack

import pytest
import redis
from django.conf import settings

from django_redislock import locks, single_instance
from tests.lock_tools import commands, start, waiting
from tests.round_trips import RoundTrips
from tests.tools import ROOT

KINDS = {
    "`lock`": lambda: locks.lock("a"),
    "`semaphore`": lambda: locks.semaphore("a", 1),
    "`read_lock`": lambda: locks.read_lock("a"),
    "`write_lock`": lambda: locks.write_lock("a"),
}


def sent(called):
    # Commands that scripts call are not round trips.
    return called["evalsha"] + called["eval"] + called["blpop"]


def cost(client, do):
    with commands(client) as called:
        do()
    return sent(called)


def hand_over(make, client):
    """Return the number of commands from the start of a release until the waiter has acquired."""
    lock = locks.write_lock("a") if make is KINDS["`read_lock`"] else make()
    assert lock.acquire()
    waits = start(make().acquire)
    waiting(locks, "a", 1)
    with commands(client) as called:
        lock.release()
        assert waits.result(60)
    locks.force_release("a")
    return sent(called)


def table():
    page = (ROOT / "docs" / "project" / "architecture.md").read_text()
    rows = re.findall(r"^\| (`\w+`) \| (\d+) \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    return {kind: tuple(map(int, numbers)) for kind, *numbers in rows}


def test_the_table_has_each_kind():
    assert set(table()) == {*KINDS, "`quorum`"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_cost_of_a_lock_matches_the_table(redis_server, kind):
    make, (acquire, release, over) = KINDS[kind], table()[kind]
    with make():  # the server knows the scripts
        pass
    lock = make()
    assert (cost(redis_server, lock.acquire), cost(redis_server, lock.release)) == (
        acquire,
        release,
    )
    # A heartbeat of the waiter may fall into the handover, with one more request.
    assert min(hand_over(make, redis_server) for _ in range(5)) == over


def test_the_cost_of_a_quorum_matches_the_table(three_servers):
    acquire, release, _ = table()["`quorum`"]
    with ExitStack() as stack:
        clients = [
            stack.enter_context(redis.Redis.from_url(settings.CACHES[alias]["LOCATION"]))
            for alias in three_servers
        ]

        def cost_of_all(do):
            with ExitStack() as counting:
                called = [counting.enter_context(commands(client)) for client in clients]
                do()
            return sum(map(sent, called))

        with locks.quorum("a", three_servers):
            pass
        lock = locks.quorum("a", three_servers)
        assert (cost_of_all(lock.acquire), cost_of_all(lock.release)) == (acquire, release)


def lock(**options):
    return locks.lock("a", **options)


@contextlib.contextmanager
def held(**options):
    held = lock(**options)
    assert held.acquire(blocking=False)
    yield held
    locks.force_release("a")


@contextlib.contextmanager
def nothing():
    yield None


SOME = ("a", "b", "c")

OPERATIONS = {
    # The operation, its context, and its numbers of round trips and commands.
    "acquire": (lambda _: lock().acquire(), nothing, 1, 1),
    "acquire, refused": (lambda _: lock().acquire(blocking=False), held, 1, 1),
    "enter again": (lambda a: a.acquire(), lambda: held(reentrant=True), 0, 0),
    "release": (lambda a: a.release(), held, 1, 1),
    "extend": (lambda a: a.extend(5), held, 1, 1),
    "locked": (lambda a: a.locked(), held, 1, 1),
    "owned": (lambda a: a.owned(), held, 1, 1),
    "lost": (lambda a: a.lost, held, 0, 0),
    "assert_held": (lambda a: a.assert_held(), held, 0, 0),
    "lock_many": (lambda _: locks.lock_many(SOME).acquire(), nothing, 3, 3),
    "a single instance": (lambda _: single_instance(key="a")(lambda: None)(), nothing, 2, 2),
    "get": (lambda _: locks.get("a"), held, 1, 1),
    "get_many": (lambda _: locks.get_many(SOME), held, 1, 1),
    "queue": (lambda _: locks.queue("a"), held, 1, 1),
    "history of one": (lambda _: locks.history("a"), held, 1, 3),
    "history": (lambda _: locks.history(), held, 1, 3),
    "rates": (lambda _: locks.rates(), held, 1, 1),
    "count": (lambda _: locks.count(), held, 1, 1),
    "page": (lambda _: locks.page(), held, 2, 2),
    "page of a pattern": (lambda _: locks.page("a*"), held, 2, 2),
    "active": (lambda _: list(locks.active()), held, 2, 2),
    "force_release": (lambda _: locks.force_release("a"), held, 1, 1),
    "ping": (lambda _: locks.ping(), nothing, 2, 2),
}


@pytest.fixture
def known(redis_server):
    """Prepare a server with the scripts and a short history, and a connected client."""
    redis_server.flushdb()
    with held(reentrant=True) as each:
        each.extend(5)
        assert each.owned()
        assert each.locked()
        assert locks.get("a")
        for ask in (locks.count, locks.page, locks.history, locks.rates, locks.ping):
            ask()
        locks.queue("a")
        assert locks.page("a*").infos


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_round_trips_and_commands_of_an_operation(redis_server, known, operation):
    do, where, round_trips, sends = OPERATIONS[operation]
    made = RoundTrips(of_this_thread=True)
    with where() as about, commands(redis_server) as called, made:
        do(about)
    for name in SOME:
        locks.force_release(name)
    assert (made.count, sent(called)) == (round_trips, sends)
