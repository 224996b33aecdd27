"""The checker finds violations in hand-written histories."""

import itertools
import math
from contextlib import closing
from dataclasses import fields

import pytest

from .checker import Findings, check
from .scenario import Run, Scenario, Setting
from .scenarios import replies
from .scenarios.failovers import AT_ONCE, on_no_replica, too_late

LOCK = "a"


class History:
    """Hand-written events of one lock, each one second after the previous one."""

    def __init__(self):
        self.events = []
        self.tokens = itertools.count(1)
        self.now = 0.0

    def note(self, who, what, **facts):
        self.now += 1
        event = {"t": self.now, "who": who, "what": what, "lock": LOCK, **facts}
        self.events.append({name: value for name, value in event.items() if value is not None})
        return event

    def want(self, who, *, queued=False, weight=1, capacity=1):
        self.note(who, "want", weight=weight, capacity=capacity)
        asked = self.now
        if queued:
            self.note(who, "queued")
        return asked

    def hold(self, who, fence, *, lease=100, end=None, asked=None, weight=1, capacity=1):
        """Request the lock, unless `asked` is given, and hold it. Return the token."""
        asked = self.want(who, weight=weight, capacity=capacity) if asked is None else asked
        token = next(self.tokens)
        self.note(who, "kept", token=token, deadline=end or self.now + 1 + lease)
        room = {"weight": weight, "capacity": capacity}
        self.note(who, "held", token=token, fence=fence, asked=asked, **room)
        return token

    def release(self, who, token):
        self.note(who, "release", token=token)
        self.note(who, "released", token=token)

    def write(self, who, fence, **facts):
        place = sum(event["what"] == "write" for event in self.events)
        self.note(who, "write", fence=fence, place=place, **facts)

    def kill(self, who):
        self.note("harness", "killed", client=who, dead=self.now + 1, lock=None)

    def found(self, **options):
        return check(self.events, **options)


@pytest.fixture
def history():
    return History()


NOT_WRONG = {"holds", "faults", "errors", "until_free", "handovers", "reported_after"}
WRONG = {field.name for field in fields(Findings)} - NOT_WRONG


def wrong(found):
    return {name for name in WRONG if getattr(found, name)}


# The scenarios would report false violations, so only rare cases are here


@pytest.mark.parametrize("why", ["late", "taken"])
def test_a_hold_that_ended_before_its_holder_knew_has_no_known_begin(history, why):
    """The process or the server was paused past the lease, or the lock was taken during the wait.
    Another client held the lock in between."""
    asked = history.want("late")
    lease_end = history.now + (0.5 if why == "late" else 100)
    if why == "taken":
        history.note("harness", "taken")
    history.release("other", history.hold("other", 2))
    history.write("other", 2)
    token = history.hold("late", 3 if why == "late" else 1, end=lease_end, asked=asked)
    if why == "taken":
        history.write("late", 1)
        history.note("late", "lost", token=token)
    assert not wrong(history.found())


# Overlaps, and until when a client believes that it holds the lock


@pytest.mark.parametrize("what", ["kept", "checked"])
def test_a_renewal_or_a_check_extends_the_belief(history, what):
    token = history.hold("a", 1, lease=0.5)
    if what == "kept":
        history.note("a", "kept", token=token, deadline=100)
    history.hold("b", 2)
    if what == "checked":
        history.note("a", "checked", token=token)
    assert len(history.found().overlaps) == 1


def test_readers_hold_together_and_a_writer_alone(history):
    reader, writer = {"weight": 1, "capacity": 100}, {"weight": 100, "capacity": 100}
    first = history.hold("a", 1, **reader)
    second = history.hold("b", 2, **reader)
    assert not wrong(history.found())
    history.release("a", first)
    third = history.hold("c", 3, **writer)
    assert len(history.found().overlaps) == 1
    history.release("b", second)
    history.release("c", third)
    assert len(history.found().overlaps) == 1


# Fencing tokens and writes


def test_without_exclusion_only_a_client_that_asked_later_surely_came_later(history):
    asked = history.want("a"), history.want("b")
    tokens = history.hold("a", 2, asked=asked[0]), history.hold("b", 1, asked=asked[1])
    found = history.found(exclusive=False)
    assert len(found.overlaps) == 1
    assert not found.fences
    assert history.found().fences
    history.release("a", tokens[0])
    history.hold("c", 2)
    assert len(history.found(exclusive=False).fences) == 1


@pytest.mark.parametrize("first", ["late", "released", "released with the same"])
def test_a_fencing_token_that_does_not_grow_is_found(history, first):
    token = history.hold("a", 2, lease=-0.5 if first == "late" else 100)
    if first != "late":
        history.release("a", token)
    history.hold("b", 2 if first == "released with the same" else 1)
    assert len(history.found().fences) == 1


# Waiters


@pytest.mark.parametrize("surely", [True, False])
def test_a_waiter_that_was_surely_queued_is_not_overtaken(history, surely):
    first = history.want("a", queued=surely)
    second = history.want("b", queued=True)
    history.release("b", history.hold("b", 1, asked=second))
    history.hold("a", 2, asked=first)
    assert len(history.found().overtakings) == surely


def test_a_release_is_handed_over_to_the_waiter(history):
    token = history.hold("a", 1)
    asked = history.want("b", queued=True)
    history.release("a", token)
    history.now += 1
    history.release("b", history.hold("b", 2, asked=asked))
    history.hold("c", 3)
    assert history.found().handovers == [3.0]


@pytest.mark.parametrize("killed", [True, False])
def test_the_time_until_a_lock_is_free_counts_from_the_fault(history, killed):
    token = history.hold("a", 1)
    if killed:
        history.kill("a")
    asked = history.want("b")
    if killed:
        history.now += 4
    else:
        history.note("harness", "free")
        history.release("a", token)
    history.hold("b", 2, asked=asked)
    assert history.found().until_free == [6.0 if killed else 3.0]


# Losses


@pytest.mark.parametrize("why", ["nothing", "late", "taken"])
@pytest.mark.parametrize("how", ["LockNotOwnedError", "LockLost", "lost"])
def test_a_loss_without_a_cause_is_found(history, why, how):
    token = history.hold("a", 1, lease=0.5 if why == "late" else 100)
    if why == "taken":
        history.note("harness", "taken")
    if how == "lost":
        history.note("a", "lost", token=token)
    else:
        history.note("a", "release", token=token)
        history.note("a", "error", during="release", type=how, token=token)
    assert len(history.found().not_owned) == (why == "nothing")


@pytest.mark.parametrize("too_early", [False, True])
def test_a_loss_that_is_reported_before_it_happened_is_found(history, too_early):
    token = history.hold("a", 1)
    since = history.now
    history.note("a", "lost", token=token)
    history.note("harness", "taken", since=since + 2 if too_early else since)
    assert len(history.found().not_owned) == too_early


@pytest.mark.parametrize("released", [True, False])
def test_a_lock_that_no_client_holds_is_a_phantom(history, released):
    token = history.hold("a", 1)
    if released:
        history.release("a", token)
    history.note("harness", "stands", tokens=[token])
    assert len(history.found().phantoms) == released


@pytest.mark.parametrize("tokens", [["any"], ["any", "another"]])
@pytest.mark.parametrize("waits", [True, False])
def test_a_waiter_that_died_may_have_been_granted_the_lock_once(history, waits, tokens):
    if waits:
        history.want("a", queued=True)
    else:
        history.release("a", history.hold("a", 1))
    history.kill("a")
    history.note("harness", "stands", tokens=tokens)
    assert len(history.found().phantoms) == (len(tokens) > waits)


def test_findings_at_the_end_are_reported(history):
    history.note("harness", "phantom")
    history.note("harness", "double")
    history.note("harness", "left", key="a")
    found = history.found()
    assert [len(each) for each in (found.phantoms, found.doubles, found.leftovers)] == [1, 1, 1]


# Failovers


@pytest.mark.parametrize(
    ("seconds", "clients", "sent", "t", "too_early"),
    [
        (0.2, [], 12, 12.1, True),
        (math.inf, [], 12, 19, True),
        (math.inf, ["a"], 12, 19, True),
        (0.2, [], 12, 12.3, False),
        (0.2, [], 9.9, 10, False),
        (0.2, [], 19.9, 20, False),
        (0.2, [], 21, 21, False),
        (math.inf, [], 12, 21, False),
        (math.inf, ["b"], 12, 19, False),
        (0, [], 12, 12.1, False),
    ],
)
def test_a_lease_that_is_confirmed_before_a_replica_can_have_it_is_found(
    seconds, clients, sent, t, too_early
):
    lag = {"what": "behind", "since": 10, "t": 20, "seconds": seconds, "clients": clients}
    lease = {"what": "kept", "who": "a", "lock": LOCK, "sent": sent, "t": t}
    assert len(list(on_no_replica([lag | {"locks": [LOCK]}, lease]))) == too_early
    assert not list(on_no_replica([lag | {"locks": ["another"]}, lease]))


@pytest.mark.parametrize(
    ("events", "late"),
    [
        ({"lost": 9}, False),
        ({"lost": 10 + AT_ONCE / 2}, False),
        ({"lost": 10.1 + AT_ONCE}, True),
        ({"checked": 10.01, "lost": 10.02}, True),
        ({"release": 9, "lost": 15}, False),
        ({"stopped": 3, "resumed": 14, "lost": 15}, False),
    ],
)
def test_a_late_report_of_a_loss_is_found(events, late):
    about = {"who": "a", "lock": LOCK, "token": 1, "deadline": 10, "client": "a"}
    room = {"fence": 1, "weight": 1, "capacity": 1, "asked": 2}
    held = [about | {"what": "kept", "t": 2.1}, about | room | {"what": "held", "t": 2.2}]
    changes = [about | {"what": what, "t": t} for what, t in events.items()]
    assert bool(list(too_late(check([*held, *changes])))) == late


# A planted fault that only this scenario finds. `test_planted.py` has the others


@pytest.mark.xdist_group("planted")
def test_leases_that_count_from_the_reply_are_found(monkeypatch):
    client_of = Run.client_of

    def client_with_the_fault(*args):
        client = client_of(*args)
        assert client.ask("tests.faults.planted:plant", fault="counts leases from the reply")
        return client

    monkeypatch.setattr(Run, "client_of", client_with_the_fault)
    monkeypatch.setattr(replies, "LATE", (0.5, 0.7))  # the lease lasts until then
    runs = 2 * len(replies.WAYS)
    scenario = Scenario(0, "planted faults", replies.hold_up, runs=runs, short=runs)
    with closing(Setting(scenario, seed=1, short=True, make="valkey-9.1")) as setting:
        findings, _ = setting.run_and_check()
    numbers = [int(text.split()[1].rstrip(":")) for text in findings.overlaps]
    late = {replies.WAYS[number % len(replies.WAYS)] for number in numbers}
    assert late >= {replies.Scene.acquisition, replies.Scene.extension, replies.Scene.renewal}
