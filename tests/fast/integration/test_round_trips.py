"""The cost of a lock: commands from clients, which are in a table of the documentation, and
commands that the scripts call."""

import re

import pytest

from django_redislock import locks
from tests.lock_tools import commands, start, waiting
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


@pytest.mark.parametrize("kind", KINDS)
def test_the_cost_of_a_lock_matches_the_table(redis_server, kind):
    make, (acquire, release, over) = KINDS[kind], table()[kind]
    with make():  # the server knows the scripts
        pass
    lock = make()
    assert cost(redis_server, lock.acquire) == acquire
    assert cost(redis_server, lock.release) == release
    # A heartbeat of the waiter may fall into the handover, with one more request.
    assert min(hand_over(make, redis_server) for _ in range(5)) == over


def test_an_uncontended_lock_calls_six_commands_in_each_script(redis_server):
    lock, inside = locks.lock("a"), {"acquire": [], "release": []}
    for _ in range(5):  # the first one in a minute also deletes old rates
        for what, calls in inside.items():
            with commands(redis_server) as called:
                getattr(lock, what)()
            calls.append(called.total() - sent(called))
    assert {what: min(calls) for what, calls in inside.items()} == {"acquire": 6, "release": 6}
