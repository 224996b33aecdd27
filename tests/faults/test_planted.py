"""The judge and the checker find faults that are planted into the package in client processes."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from hashlib import sha1

import pytest

from django_redislock.clock import now
from django_redislock.engine import store
from django_redislock.engine.lease import Lease
from django_redislock.engine.renewer import Renewer
from django_redislock.lua import Script
from tests.tools import wait_until

from .checker import Findings
from .crew import Client
from .judge import Verdict
from .scenario import Run, Scenario, Setting

FAST_PATH = "if is_fast and "  # begins the fast path of the script that acquires


@dataclass(frozen=True)
class Planted:
    """A text in some scripts, and its replacement."""

    good: str
    bad: str

    general: bool = False
    """Whether to disable the fast path for free locks, which would avoid the fault."""

    def into(self, script: Script) -> Script:
        source = script.source.replace(self.good, self.bad)
        if self.general and source != script.source:
            assert FAST_PATH in source or script.name != "acquire"
            source = source.replace(FAST_PATH, "if false and ")
        return replace(script, source=source, sha=sha1(source.encode()).hexdigest())  # noqa: S324


SCRIPTS = {
    "acquires although the lock is taken": Planted(
        "local is_room = lock.used + request.weight <= capacity", "local is_room = true"
    ),
    "releases without comparing tokens": Planted(
        "local key, queue, _, index, _, history = unpack(KEYS)",
        """
        local key, queue, _, index, _, history = unpack(KEYS)
        for _, each in ipairs(redis.call('HKEYS', key)) do
          token = string.match(each, '^h:(.*)$') or token
        end""",
    ),
    "uses one fencing token for all holders": Planted(
        "math.max(now_us, last_fence(lock.index) + 1)", "7", general=True
    ),
    "uses fencing tokens that shrink": Planted(
        "math.max(now_us, last_fence(lock.index) + 1)",
        "math.floor((9007199254740991 - now_us) / 10)",
        general=True,
    ),
    "hands over to nobody": Planted("hand_over(lock)\nreturn 1", "return 1"),
    "admits the last waiter first": Planted(
        "'ZRANGE', lock.queue, 0, 0,", "'ZREVRANGE', lock.queue, 0, 0,"
    ),
    "leaves a key behind": Planted(
        "record_end(history, name, kind or '', token, record, how, now_ms)",
        "redis.call('SET', KEYS[5] .. name, 'forgotten')",
    ),
    "reports a valid release as not owned": Planted(
        "hand_over(lock)\nreturn 1", "hand_over(lock)\nreturn 0"
    ),
}

NEVER_RENEWS = "neither renews nor detects the loss"


def plant(client: object, fault: str) -> int:
    """Plant the fault, and return the number of places that were changed."""
    if fault == NEVER_RENEWS:
        Renewer._due_leases = lambda renewer, watched: []  # type: ignore[method-assign]
        Lease.lost = False  # type: ignore[assignment,method-assign]
        return 1
    places = 0
    for name in ("ACQUIRE", "RELEASE", "RENEW", "HEARTBEAT"):
        script = getattr(store, name)
        planted = SCRIPTS[fault].into(script)
        places += planted.source != script.source
        setattr(store, name, planted)
    return places


FOUND = {
    "": {"paused"},
    "acquires although the lock is taken": {"overlaps"},
    "releases without comparing tokens": {"overlaps"},
    NEVER_RENEWS: {"overlaps"},
    "uses one fencing token for all holders": {"stale", "fences"},
    "uses fencing tokens that shrink": {"refused_in_turn", "fences"},
    "hands over to nobody": {"waits_in_vain"},
    "admits the last waiter first": {"overtakings"},
    "leaves a key behind": {"leftovers"},
    "reports a valid release as not owned": {"not_owned"},
}
"""What is found, by the fault. Without a fault it is only that a paused holder goes on."""

LONG, SHORT = 20, 1
"""Leases in seconds: one that no test outlasts, and one that expires."""

PATIENCE = 12
"""How long a client may wait for a lock that it must get, in seconds."""

FAULTS = [*FOUND]


@pytest.fixture(scope="module")
def found() -> Iterator[tuple[Findings, Verdict]]:
    scenario = Scenario(0, "planted faults", body, runs=len(FAULTS), short=len(FAULTS))
    with closing(Setting(scenario, seed=1, short=True)) as setting:
        yield setting.run_and_check()
        assert 1 not in setting.troubles, setting.troubles  # the run without a fault


def body(setting: Setting) -> None:
    setting.settled_within = 5
    node = setting.node("valkey-9.1")

    def one(run: Run) -> None:
        clients = run.clients(node, "a", "b", "c", "d")
        fault = FAULTS[run.number - 1]
        for client in clients:
            assert not fault or client.ask(f"{__name__}:plant", fault=fault)
        try:
            for step in (pause, hand_over, lose, die):
                step(run, *clients)
        finally:
            for client in clients:
                if client.died is None:  # one that is still inside says so
                    client.start("check", lock=run.lock)
                    client.has_answered(1)

    setting.each(one, lanes=5)


def queue(run: Run, client: Client) -> None:
    asked = now()
    client.start("acquire", lock=run.lock, timeout=LONG)
    client.wait_for("queued", after=asked)


def gets_it(client: Client) -> None:
    assert client.answer(timeout=PATIENCE) is True


def intrude(run: Run, client: Client) -> None:
    """Try to acquire the lock while another client holds it."""
    client.ask("acquire", lock=run.lock, how={"blocking_timeout": 1}, timeout=LONG)


def pause(run: Run, a: Client, b: Client, c: Client, d: Client) -> None:
    """A client is stopped between its check and its write, for longer than its lease. One of two
    waiters acquires the lock and writes. Then the first client resumes and releases."""
    a.ask("acquire", lock=run.lock, timeout=2 * SHORT)
    queue(run, b)
    queue(run, c)
    a.start("write", lock=run.lock, stops=True)
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
    first.ask("write", lock=run.lock)
    first.ask("release", lock=run.lock)
    gets_it(second)
    second.ask("release", lock=run.lock)


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
    b.ask("release", lock=run.lock)
    gets_it(c)
    c.ask("write", lock=run.lock)
    c.ask("release", lock=run.lock)


def lose(run: Run, a: Client, b: Client, c: Client, d: Client) -> None:
    """A client works until it sees that its lease has expired. It releases when another one has
    the lock."""
    a.start("keep", lock=run.lock, timeout=SHORT, auto_renewal=False)
    a.wait_for("enter")
    a.has_answered(8 * SHORT)
    b.start("acquire", lock=run.lock, timeout=LONG)
    gets_it(b)
    assert a.answer(timeout=0) == "lost"
    a.ask("release", lock=run.lock)
    intrude(run, d)
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
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(found: tuple[Findings, Verdict], fault: str) -> None:
    lock = f"run {FAULTS.index(fault) + 1}"
    at_lock = {
        name
        for each in found
        for name, texts in vars(each).items()
        if isinstance(texts, list) and any(is_about(text, lock) for text in texts)
    }
    assert FOUND[fault] <= at_lock
    assert fault or at_lock - {"stale_without_fence"} == FOUND[fault]


def is_about(text: object, lock: str) -> bool:
    return isinstance(text, str) and (f"{lock}:" in text or f"{lock}'" in text)
