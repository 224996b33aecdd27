"""The judge and the checker read hand-written histories. `test_planted.py` shows that they find
what clients do wrong."""

import itertools
import math

import pytest

from .checker import check
from .judge import RELEASED, judge
from .scenarios.failovers import AT_ONCE, on_no_replica, too_late

LOCK = "a"

READER, WRITER = {"weight": 1, "capacity": 100}, {"weight": 100, "capacity": 100}


class History:
    """Hand-written events of one lock, each one second after the previous one."""

    def __init__(self):
        self.events = []
        self.tokens = itertools.count(1)
        self.now = 0.0

    def note(self, who, what, **facts):
        self.now += 1
        times = {"t": self.now, "at": self.now}
        self.events.append(times | {"who": who, "what": what, "lock": LOCK, **facts})

    def want(self, who, *, weight=1, capacity=1):
        self.note(who, "want", weight=weight, capacity=capacity)
        return self.now

    def hold(self, who, fence=1, *, lease=100, asked=None, weight=1, capacity=1):
        """Request the lock, unless `asked` is given, and hold it. Return the token."""
        room = {"weight": weight, "capacity": capacity}
        asked = self.want(who, **room) if asked is None else asked
        token = next(self.tokens)
        self.note(who, "kept", token=token, deadline=self.now + 1 + lease)
        self.note(who, "held", token=token, fence=fence, asked=asked, **room)
        self.note(who, "enter", fence=fence, **room)
        return token

    def release(self, who, token):
        self.note(who, "leave", how=RELEASED)
        self.note(who, "release", token=token)
        self.note(who, "released", token=token)

    def write(self, who, fence):
        place = sum(event["what"] == "write" for event in self.events)
        self.note(who, "write", fence=fence, place=place)

    def kill(self, who):
        self.note("harness", "killed", client=who, dead=self.now + 1)

    def pause(self, who):
        self.note("harness", "stopped", client=who)
        self.note("harness", "resumed", client=who)

    def checked(self, **options):
        return check(self.events, **options)

    def judged(self, **options):
        return judge(self.events, **options)


@pytest.fixture
def history():
    return History()


# Both


def test_readers_hold_together_and_a_writer_alone(history):
    first = history.hold("a", 1, **READER)
    history.hold("b", 2, **READER)
    assert not history.judged().all_overlaps + history.checked().overlaps
    history.release("a", first)
    history.hold("c", 3, **WRITER)
    history.write("b", 2)
    history.write("c", 3)
    assert len(history.judged().overlaps) == len(history.checked().overlaps) == 1


def test_without_exclusion_only_a_client_that_asked_later_surely_came_later(history):
    asked = history.want("a"), history.want("b")
    token = history.hold("a", 2, asked=asked[0])
    history.hold("b", 1, asked=asked[1])
    history.write("b", 1)
    history.write("a", 2)
    assert history.checked().fences
    assert history.judged().stale_without_fence
    assert not history.checked(exclusive=False).fences
    assert not history.judged(exclusive=False).stale_without_fence
    history.release("a", token)
    history.hold("c", 2)
    history.write("c", 3)
    history.write("b", 3)
    assert history.checked(exclusive=False).fences
    assert history.judged(exclusive=False).stale


# The judge


@pytest.mark.parametrize("why", ["", "is paused", "the server is away", "the holder is dead"])
def test_a_client_waits_in_vain_unless_there_is_a_reason(history, why):
    token = history.hold("a")
    asked = history.want("b")
    if why == "the holder is dead":
        history.kill("a")
    else:
        history.release("a", token)
    if why == "is paused":
        history.pause("b")
    if why == "the server is away":
        history.note("harness", "away")
    history.now += 20
    history.note("harness", "back")
    history.hold("b", asked=asked)
    assert bool(history.judged().waits_in_vain) == (not why)


# The checker


@pytest.mark.parametrize("tokens", [["any"], ["any", "another"]])
@pytest.mark.parametrize("waits", [True, False])
def test_a_lock_without_a_holder_is_a_phantom_unless_its_waiter_died(history, waits, tokens):
    if waits:
        history.want("a")
    else:
        history.release("a", history.hold("a", 1))
    history.kill("a")
    history.note("harness", "stands", tokens=tokens)
    assert len(history.checked().phantoms) == (len(tokens) > waits)


# Failovers


@pytest.mark.parametrize(
    ("seconds", "clients", "sent", "t", "too_early"),
    [
        (0.2, [], 12, 12.1, True),
        (math.inf, ["a"], 12, 19, True),
        (0.2, [], 12, 12.3, False),
        (0.2, [], 9.9, 10, False),
        (0.2, [], 21, 21, False),
        (math.inf, [], 12, 21, False),
        (math.inf, ["b"], 12, 19, False),
    ],
)
def test_a_lease_that_is_confirmed_before_a_replica_can_have_it_is_found(
    seconds, clients, sent, t, too_early
):
    lag = {"what": "behind", "since": 10, "t": 20, "seconds": seconds, "clients": clients}
    lease = {"what": "kept", "who": "a", "lock": LOCK, "sent": sent, "t": t}
    assert len(list(on_no_replica([lag | {"locks": [LOCK]}, lease]))) == too_early


@pytest.mark.parametrize(("after", "late"), [(0.1, False), (AT_ONCE + 1, True)])
def test_a_late_report_of_a_loss_is_found(history, after, late):
    token = history.hold("a", lease=10)
    history.now = 11 + after  # its lease ends at 12, and the next event is a second later
    history.note("a", "lost", token=token)
    assert bool(list(too_late(history.checked()))) == late
