"""The judge finds faults that are planted into the package in client processes. It only knows when
clients entered and left their critical sections, and what they wrote.
"""

from contextlib import closing

import pytest

from .crew import Client
from .events import read
from .judge import Verdict, judge
from .scenario import Run, Scenario, Setting

FINDS = {
    "": "paused",
    "acquires although the lock is taken": "overlaps",
    "grants to all waiters": "overlaps",
    "releases without comparing tokens": "overlaps",
    "drops leases after half a second": "overlaps",
    "neither renews nor detects the loss": "overlaps",
    "believes in its lease for a minute longer": "overlaps",
    "uses one fencing token for all holders": "stale",
    "uses fencing tokens that shrink": "refused_in_turn",
    "grants without removing the waiter": "waits_in_vain",
    "hands over to nobody": "waits_in_vain",
}
"""What the judge finds, by the fault. Without a fault it finds the overlap of a paused holder."""

LONG, SHORT = 20, 1
"""Leases in seconds: one that no test outlasts, and one that expires."""

PATIENCE = 12
"""How long a client may wait for a lock that it must get, in seconds."""

WITHIN = 5.0
"""How long a lock may be free, and how long after a death it may stay taken."""


@pytest.fixture(scope="module")
def verdict():
    runs = len(FINDS)
    scenario = Scenario(0, "planted faults", body, runs=runs, short=runs)
    with closing(Setting(scenario, seed=1, short=True, make="valkey-9.1")) as setting:
        setting.run_and_check()
        # A run with a fault may end early: a client does not get its lock.
        assert 1 not in setting.troubles, setting.troubles
        yield judge(read(setting.folder), within=WITHIN, free_within=WITHIN)


def body(setting: Setting) -> None:
    setting.settled_within = 0
    node, crew = setting.node(), setting.crew()

    def one(run: Run) -> None:
        clients = [run.client(crew, who, node.url) for who in ("a", "b", "c", "d")]
        fault = list(FINDS)[run.number - 1]
        for client in clients:
            assert not fault or client.ask("tests.faults.planted:plant", fault=fault)
        try:
            for step in (hand_over, lose, pause, die):
                step(run, *clients)
        finally:
            for client in clients:
                if client.died is None:  # one that is still inside says so
                    client.start("check", lock=run.lock)
                    client.has_answered(1)

    setting.each(one, lanes=len(FINDS))


def queue(run: Run, client: Client) -> None:
    client.start("acquire", lock=run.lock, timeout=LONG)
    client.wait_for("queued")


def gets_it(client: Client) -> None:
    assert client.answer(timeout=PATIENCE) is True


def intrude(run: Run, client: Client) -> None:
    """Try to acquire the lock while another client holds it."""
    options = {"how": {"blocking_timeout": 1}, "timeout": LONG}
    client.ask("acquire", lock=run.lock, **options)


def hand_over(run: Run, a: Client, b: Client, c: Client, d: Client) -> None:
    """Two clients wait, and get the lock one after the other."""
    a.ask("acquire", lock=run.lock, timeout=LONG, auto_renewal=False)
    intrude(run, d)
    queue(run, b)
    queue(run, c)
    a.ask("write", lock=run.lock)
    a.ask("release", lock=run.lock)
    gets_it(b)
    b.ask("write", lock=run.lock)
    c.has_answered(0.5)  # it should not, yet
    b.ask("release", lock=run.lock)
    gets_it(c)
    c.ask("write", lock=run.lock)
    c.ask("release", lock=run.lock)


def lose(run: Run, a: Client, b: Client, c: Client, d: Client) -> None:
    """A client works until it sees that its lease has expired. It releases when another one has
    the lock."""
    a.start("tests.faults.work:keep", lock=run.lock, timeout=SHORT, auto_renewal=False)
    a.wait_for("enter")
    a.has_answered(8 * SHORT)
    b.start("acquire", lock=run.lock, timeout=LONG)
    gets_it(b)
    assert a.answer(timeout=0) == "lost"
    a.ask("release", lock=run.lock)
    intrude(run, d)
    b.ask("write", lock=run.lock)
    b.ask("release", lock=run.lock)


def pause(run: Run, a: Client, b: Client, c: Client, d: Client) -> None:
    """A client is stopped between its check and its write, for longer than its lease."""
    a.ask("acquire", lock=run.lock, timeout=SHORT)
    a.start("write", lock=run.lock, between="stop")
    a.stops_itself()
    b.start("acquire", lock=run.lock, timeout=LONG)
    gets_it(b)
    b.ask("write", lock=run.lock)
    a.resume()
    a.answer()
    a.ask("release", lock=run.lock)
    b.ask("write", lock=run.lock)
    b.ask("release", lock=run.lock)


def die(run: Run, a: Client, b: Client, c: Client, d: Client) -> None:
    """Two clients die, one while it holds the lock and one while it waits. A third one waits."""
    a.ask("acquire", lock=run.lock, timeout=SHORT)
    queue(run, b)
    queue(run, c)
    b.kill()
    a.kill()
    gets_it(c)
    c.ask("release", lock=run.lock)


@pytest.mark.xdist_group("planted")
@pytest.mark.parametrize("fault", FINDS)
def test_a_planted_fault_is_found(verdict: Verdict, fault: str) -> None:
    lock = f"run {[*FINDS].index(fault) + 1}:"
    names = ("overlaps", "paused", "stale", "refused_in_turn", "waits_in_vain")
    found = {
        name for name in names if any(text.startswith(lock) for text in getattr(verdict, name))
    }
    assert FINDS[fault] in found
    assert fault or found == {"paused"}
