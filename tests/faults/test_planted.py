"""The judge and the checker find faults that are planted into the package in client processes."""

from collections.abc import Iterable, Iterator
from contextlib import closing

import pytest

from tests.tools import wait_until

from .checker import Findings
from .crew import Client
from .events import read
from .judge import Verdict, judge
from .scenario import Run, Scenario, Setting

JUDGED = {
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

CHECKED = {
    "": None,
    "releases without comparing tokens": "overlaps",
    "neither renews nor detects the loss": "overlaps",
    "uses one fencing token for all holders": "fences",
    "admits the last waiter first": "overtakings",
    "leaves a key behind": "leftovers",
    "reports a valid release as not owned": "not_owned",
}
"""What the checker finds, by the fault."""

LONG, SHORT = 20, 1
"""Leases in seconds: one that no test outlasts, and one that expires."""

PATIENCE = 12
"""How long a client may wait for a lock that it must get, in seconds."""

WITHIN = 5.0
"""How long a lock may be free, and how long after a death it may stay taken."""


@pytest.fixture(scope="module")
def found() -> Iterator[tuple[Findings, Verdict]]:
    runs = len(JUDGED) + len(CHECKED)
    scenario = Scenario(0, "planted faults", body, runs=runs, short=runs)
    with closing(Setting(scenario, seed=1, short=True, make="valkey-9.1")) as setting:
        findings, _ = setting.run_and_check()
        # A run of the judge with a fault may end early: a client does not get its lock.
        assert not [n for n in setting.troubles if n == 1 or n > len(JUDGED)], setting.troubles
        yield findings, judge(read(setting.folder), within=WITHIN, free_within=WITHIN)


def body(setting: Setting) -> None:
    setting.settled_within = 5
    node, crew = setting.node(), setting.crew()
    faults = [*JUDGED, *CHECKED]

    def one(run: Run) -> None:
        clients = [run.client(crew, who, node.url) for who in ("a", "b", "c", "d")]
        fault = faults[run.number - 1]
        for client in clients:
            assert not fault or client.ask("tests.faults.planted:plant", fault=fault)
        is_judged = run.number <= len(JUDGED)
        try:
            for step in (hand_over, lose, pause, die) if is_judged else (pause_before_two,):
                step(run, *clients)
        finally:
            for client in clients:
                if client.died is None:  # one that is still inside says so
                    client.start("check", lock=run.lock)
                    client.has_answered(1)

    setting.each(one, lanes=len(JUDGED))


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


def pause_before_two(run: Run, a: Client, b: Client, c: Client, d: Client) -> None:
    """A client is stopped between its check and its write, for longer than its lease. One of two
    waiters acquires the lock and writes. Then the first client resumes and releases."""
    a.ask("acquire", lock=run.lock, timeout=2 * SHORT)
    queue(run, b)
    queue(run, c)
    a.start("write", lock=run.lock, between="stop")
    a.stops_itself()
    first = wait_until(lambda: next((each for each in (b, c) if each.has_answered()), None))
    [second] = {b, c} - {first}
    first.answer()
    first.ask("write", lock=run.lock)
    a.resume()
    a.answer()
    a.ask("check", lock=run.lock)
    a.ask("release", lock=run.lock)
    second.has_answered(1)  # it should not, yet
    first.ask("release", lock=run.lock)
    second.answer()
    second.ask("release", lock=run.lock)


def names_of(lock: str, of: Findings | Verdict, names: Iterable[str]) -> set[str]:
    """Return which of the findings were made about the lock."""
    return {name for name in names if any(lock in text for text in getattr(of, name))}


@pytest.mark.xdist_group("planted")
@pytest.mark.parametrize("fault", JUDGED)
def test_the_judge_finds_it(found: tuple[Findings, Verdict], fault: str) -> None:
    names = ("overlaps", "paused", "stale", "refused_in_turn", "waits_in_vain")
    at_lock = names_of(f"run {[*JUDGED].index(fault) + 1}:", found[1], names)
    assert JUDGED[fault] in at_lock
    assert fault or at_lock == {"paused"}


@pytest.mark.xdist_group("planted")
@pytest.mark.parametrize("fault", CHECKED)
def test_the_checker_finds_it(found: tuple[Findings, Verdict], fault: str) -> None:
    names = {"overlaps", "fences", "overtakings", "not_owned", "leftovers"}
    at_lock = names_of(f"run {len(JUDGED) + [*CHECKED].index(fault) + 1}", found[0], names)
    assert CHECKED[fault] in at_lock if fault else at_lock == set()
