"""The cost of each operation: round trips, commands from clients (which are in a table of the
documentation), and commands that the scripts call."""

import contextlib
import re

import pytest
import redis

from django_redislock import locks, single_instance
from tests.lock_tools import commands, start, waiting
from tests.round_trips import RoundTrips
from tests.servers import Node
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


def acquire_and_release(make, client):
    lock = make()
    with commands(client) as acquiring:
        assert lock.acquire()
    with commands(client) as releasing:
        lock.release()
    return sent(acquiring), sent(releasing)


def hand_over(make, client):
    """Return the number of commands from the start of a release until the waiter has acquired."""
    lock = locks.write_lock("a") if make is KINDS["`read_lock`"] else make()
    assert lock.acquire()
    waiter = make()
    waits = start(waiter.acquire)
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
    acquire, release, over = table()[kind]
    with KINDS[kind]():  # the server knows the scripts
        pass
    assert acquire_and_release(KINDS[kind], redis_server) == (acquire, release)
    # A heartbeat of the waiter may fall into the handover, with one more request.
    assert min(hand_over(KINDS[kind], redis_server) for _ in range(5)) == over


@pytest.fixture
def three(alias_on):
    """The aliases of three servers, and a counter of the commands to all of them in a block."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(Node()) for _ in range(3)]
        clients = [stack.enter_context(redis.Redis.from_url(each.url)) for each in servers]
        for place, each in enumerate(servers):
            alias_on(each.url, alias=f"q{place}")

        @contextlib.contextmanager
        def counted():
            with contextlib.ExitStack() as counting:
                called = [counting.enter_context(commands(client)) for client in clients]
                total = []
                yield total
            total.append(sum(map(sent, called)))

        yield ["q0", "q1", "q2"], counted


def test_the_cost_of_a_quorum_matches_the_table(three):
    aliases, counted = three
    acquire, release, over = table()["`quorum`"]
    with locks.quorum("a", aliases):  # the servers know the scripts
        pass
    lock = locks.quorum("a", aliases)
    with counted() as acquiring:
        assert lock.acquire()
    with counted() as releasing:
        lock.release()
    assert (acquiring, releasing) == ([acquire], [release])

    assert lock.acquire()
    waits = start(locks.quorum("a", aliases).acquire)
    waiting(locks.using("q0"), "a", 1)
    with counted() as called:
        lock.release()
        assert waits.result(60)
    # A heartbeat of the waiter may fall into the handover, with one more request.
    assert over - 4 <= called[0] <= over + 2


def lock(**options):
    return locks.lock("a", **options)


def acquired(**options):
    held = lock(**options)
    assert held.acquire(blocking=False)
    return held


@contextlib.contextmanager
def held(**options):
    held = acquired(**options)
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
    "acquire with renewal off": (lambda _: lock(auto_renewal=False).acquire(), nothing, 1, 1),
    "enter again": (lambda a: a.acquire(), lambda: held(reentrant=True), 0, 0),
    "release": (lambda a: a.release(), held, 1, 1),
    "extend": (lambda a: a.extend(5), held, 1, 1),
    "reacquire": (lambda a: a.reacquire(), held, 1, 1),
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
    "a page further on": (lambda _: locks.page(stop=1000), held, 2, 2),
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


def test_an_uncontended_lock_calls_six_commands_in_each_script(redis_server, known):
    each, inside = lock(), {"acquire": [], "release": []}
    for _ in range(5):  # the first one in a minute also deletes old rates
        for what, calls in inside.items():
            with commands(redis_server) as called:
                getattr(each, what)()
            calls.append(called.total() - sent(called))
    assert {what: min(calls) for what, calls in inside.items()} == {"acquire": 6, "release": 6}
