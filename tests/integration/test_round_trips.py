"""What each lock costs, in commands that clients send: the table in the documentation."""

import contextlib
import re

import pytest
import redis

from django_redislock import locks
from testproject.server import EmbeddedServer
from tests.tools import ROOT

from .tools import commands, start, waiting

KINDS = {
    "`lock`": lambda: locks.lock("a"),
    "`semaphore`": lambda: locks.semaphore("a", 1),
    "`read_lock`": lambda: locks.read_lock("a"),
    "`write_lock`": lambda: locks.write_lock("a"),
}


def sent(called):
    # What the scripts call inside of Redis is no round trip.
    return called["evalsha"] + called["eval"] + called["blpop"]


def acquire_and_release(make, client):
    lock = make()
    with commands(client) as acquiring:
        assert lock.acquire()
    with commands(client) as releasing:
        lock.release()
    return sent(acquiring), sent(releasing)


def hand_over(make, client):
    """The commands that end between the start of the release and that of the waiter's acquire."""
    lock = locks.write_lock("a") if make is KINDS["`read_lock`"] else make()
    assert lock.acquire()
    waiter = make()
    waits = start(waiter.acquire)
    waiting(locks, "a", 1)
    with commands(client) as called:
        lock.release()
        assert waits.result(10)
    locks.force_release("a")
    return sent(called)


def table():
    page = (ROOT / "docs" / "reference" / "locks.md").read_text()
    rows = re.findall(r"^\| (`\w+`) \| .+ \| (\d+) \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    return {kind: tuple(map(int, numbers)) for kind, *numbers in rows}


def test_the_table_has_every_kind():
    assert set(table()) == {*KINDS, "`quorum`"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_costs_what_the_table_says(redis_server, kind):
    acquire, release, over = table()[kind]
    with KINDS[kind]():  # the server knows the scripts
        pass
    assert acquire_and_release(KINDS[kind], redis_server) == (acquire, release)
    # A slice of a wait may end just then, and the waiter asks once more.
    assert min(hand_over(KINDS[kind], redis_server) for _ in range(5)) == over


@pytest.fixture
def three(alias_on):
    """The aliases of three servers, and what all of them together are sent in a block."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(EmbeddedServer()) for _ in range(3)]
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


def test_a_quorum_costs_what_the_table_says(three):
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
        assert waits.result(10)
    # A slice of a wait may end just then, and the waiter asks once more.
    assert over - 4 <= called[0] <= over + 2
