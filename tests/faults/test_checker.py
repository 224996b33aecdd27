"""The checker finds what is wrong: in histories written by hand, and in locks with a planted fault
that real clients use.
"""

import itertools
from contextlib import contextmanager
from dataclasses import fields
from functools import partial

import pytest

from django_redislock.clock import now
from tests.tools import wait_until

from .checker import Findings, check
from .planted import FLOWS, IN_FAILOVERS, SCRIPTS
from .scenario import Run, Scenario, Setting
from .scenarios import late
from .scenarios.crowd import COME_SELDOM, take_turns

LOCK = "a"


class History:
    """Events of one lock, written as they are wanted; each a second after the one before."""

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

    def hold(self, who, fence, *, lease=100, asked=None, weight=1, capacity=1):
        """It wants it, if it did not yet, and holds it; its token."""
        asked = self.want(who, weight=weight, capacity=capacity) if asked is None else asked
        token = next(self.tokens)
        self.note(who, "kept", token=token, deadline=self.now + 1 + lease)
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


NOT_WRONG = {"holds", "faults", "errors", "until_free", "hand_overs", "told_after"}
WRONG = {field.name for field in fields(Findings)} - NOT_WRONG


def nothing_wrong(found):
    return not any(getattr(found, name) for name in WRONG)


def test_turns_one_after_the_other_are_in_order(history):
    for number, who in enumerate("abab"):
        history.release(who, history.hold(who, number))
        history.write(who, number)
    found = history.found()
    assert nothing_wrong(found)
    assert len(found.holds) == 4


def test_two_who_hold_at_a_time_are_an_overlap(history):
    history.hold("a", 1)
    history.hold("b", 2)
    found = history.found()
    assert len(found.overlaps) == 1
    assert "b" in found.overlaps[0]


def test_a_lease_that_ended_on_its_clock_is_no_belief(history):
    history.hold("a", 1, lease=0.5)
    history.hold("b", 2)
    assert nothing_wrong(history.found())


def test_a_renewal_makes_the_belief_longer(history):
    token = history.hold("a", 1, lease=0.5)
    history.note("a", "kept", token=token, deadline=100)
    history.hold("b", 2)
    assert len(history.found().overlaps) == 1


def test_what_a_process_tells_of_one_of_its_users_is_that_users(history):
    token = history.hold("a process, user 1", 1, lease=100)
    history.note("a process", "kept", token=token, deadline=history.now + 1)
    history.now += 1
    history.hold("b", 2)
    assert not history.found().overlaps


def test_who_looks_and_is_told_that_it_holds_believes_it_whatever_its_lease(history):
    token = history.hold("a", 1, lease=0.5)
    history.hold("b", 2)
    history.note("a", "checked", token=token)
    assert len(history.found().overlaps) == 1


def test_where_two_may_hold_at_a_time_tokens_are_only_in_the_order_of_who_surely_came_later(
    history,
):
    asked = history.want("a"), history.want("b")
    tokens = history.hold("a", 2, asked=asked[0]), history.hold("b", 1, asked=asked[1])
    history.write("b", 1)
    history.write("a", 2)
    found = history.found(exclusive=False)
    assert len(found.overlaps) == 1
    assert not any((found.fences, found.stale, found.refused_in_turn))
    assert history.found().fences
    history.release("a", tokens[0])
    history.hold("c", 2)
    assert len(history.found(exclusive=False).fences) == 1


def test_where_two_may_hold_at_a_time_a_write_is_stale_after_one_who_surely_came_later(history):
    history.hold("a", 1)
    history.hold("b", 2)
    history.write("b", 2)
    history.write("a", 2)
    assert len(history.found(exclusive=False).stale) == 1
    assert len(history.found(exclusive=False).stale_without_fence) == 1


def test_who_is_told_that_it_lost_it_believes_it_no_longer(history):
    history.note("a", "lost", token=history.hold("a", 1))
    history.hold("b", 2)
    assert history.found().overlaps == []


def test_the_dead_believe_nothing(history):
    history.hold("a", 1)
    history.kill("a")
    history.note("harness", "free")
    history.hold("b", 2)
    assert history.found().overlaps == []


def test_who_stood_still_when_it_was_let_in_learns_of_it_when_it_is_over(history):
    asked = history.want("a")
    history.note("harness", "stopped", client="a", lock=None)
    history.hold("b", 2)
    history.note("harness", "resumed", client="a", lock=None)
    token = next(history.tokens)
    history.note("a", "kept", token=token, deadline=asked + 0.5)
    history.note("a", "held", token=token, fence=1, asked=asked, weight=1, capacity=1)
    assert nothing_wrong(history.found())


def test_of_whose_request_was_late_it_is_not_known_when_it_came(history):
    """Its process, or the server, stood still for longer than its lease before the request was
    read; meanwhile another one had its turn."""
    asked = history.want("late")
    lease_ends = history.now + 0.5
    history.release("other", history.hold("other", 1))
    history.write("other", 1)
    token = next(history.tokens)
    history.note("late", "kept", token=token, deadline=lease_ends)
    history.note("late", "held", token=token, fence=2, asked=asked, weight=1, capacity=1)
    assert nothing_wrong(history.found())


def test_of_who_learned_late_of_a_turn_that_was_taken_it_is_not_known_when_it_came(history):
    asked = history.want("late")
    history.note("harness", "taken")
    history.release("other", history.hold("other", 2))
    history.write("other", 2)
    token = next(history.tokens)
    history.note("late", "kept", token=token, deadline=100)
    history.note("late", "held", token=token, fence=1, asked=asked, weight=1, capacity=1)
    history.write("late", 1)
    history.note("late", "lost", token=token)
    assert nothing_wrong(history.found())


def test_who_learned_of_it_before_another_asked_came_before_however_late_that_was(history):
    history.hold("late", 2, lease=-0.5)
    history.hold("other", 1)
    assert len(history.found().fences) == 1


def test_readers_hold_together_and_a_writer_alone(history):
    reader, writer = {"weight": 1, "capacity": 100}, {"weight": 100, "capacity": 100}
    first = history.hold("a", 1, **reader)
    second = history.hold("b", 2, **reader)
    assert nothing_wrong(history.found())
    history.release("a", first)
    third = history.hold("c", 3, **writer)
    assert len(history.found().overlaps) == 1
    history.release("b", second)
    history.release("c", third)
    assert len(history.found().overlaps) == 1


@pytest.mark.parametrize("fence", [1, 2])
def test_a_fencing_token_that_does_not_grow_is_found(history, fence):
    history.release("a", history.hold("a", 2))
    history.release("b", history.hold("b", fence))
    assert len(history.found().fences) == 1


def test_those_who_enter_beside_each_other_may_learn_of_it_in_any_order(history):
    room = {"weight": 1, "capacity": 2}
    asked = history.want("a", **room)
    history.hold("b", 2, **room)
    history.hold("a", 1, asked=asked, **room)
    assert history.found().fences == []


def test_a_late_write_is_stale_where_no_fence_is_and_refused_where_one_is(history):
    history.hold("a", 1, lease=0.5)
    history.hold("b", 2)
    history.write("b", 2)
    history.write("a", 1)
    found = history.found()
    assert len(found.stale_without_fence) == 1
    assert found.stale == []
    assert found.refused_in_turn == []


def test_a_late_write_with_a_greater_fencing_token_is_stale_and_gets_through(history):
    history.hold("a", 2, lease=0.5)
    history.hold("b", 1)
    history.write("b", 1)
    history.write("a", 2)
    found = history.found()
    assert len(found.stale) == 1
    assert len(found.fences) == 1


def test_a_write_of_the_last_that_came_and_is_refused_is_found(history):
    history.hold("a", 2, lease=0.5)
    history.write("a", 2)
    history.hold("b", 1)
    history.write("b", 1)
    assert len(history.found().refused_in_turn) == 1


def test_a_register_tells_itself_what_its_fence_took(history):
    history.hold("a", 1, lease=0.5)
    history.hold("b", 2)
    row = {"register": "row", "fenced": True}
    history.write("b", 2, accepted=True, **row)
    history.write("a", 1, accepted=False, **row)
    assert history.found().stale == []
    history.write("a", 1, accepted=True, **row)
    assert len(history.found().stale) == 1


def test_who_asked_later_and_came_first_overtook(history):
    first = history.want("a", queued=True)
    second = history.want("b", queued=True)
    token = history.hold("b", 1, asked=second)
    history.release("b", token)
    history.hold("a", 2, asked=first)
    assert len(history.found().overtakings) == 1


def test_who_did_not_surely_stand_in_the_queue_was_not_overtaken(history):
    first = history.want("a")
    second = history.want("b", queued=True)
    history.release("b", history.hold("b", 1, asked=second))
    history.hold("a", 2, asked=first)
    assert history.found().overtakings == []


def test_who_stood_still_in_the_queue_may_be_passed_over(history):
    first = history.want("a", queued=True)
    history.note("harness", "stopped", client="a", lock=None)
    second = history.want("b", queued=True)
    history.release("b", history.hold("b", 1, asked=second))
    history.note("harness", "resumed", client="a", lock=None)
    history.hold("a", 2, asked=first)
    assert history.found().overtakings == []


def test_who_waits_beside_a_free_lock_was_not_woken(history):
    asked = history.want("a", queued=True)
    history.now += 5
    history.hold("a", 1, asked=asked)
    assert len(history.found().lost_wakeups) == 1
    assert history.found(wake_within=10).lost_wakeups == []


def test_who_waits_to_the_end_beside_a_free_lock_was_not_woken(history):
    history.want("a", queued=True)
    history.now += 5
    history.note("harness", "fault", kind="any")
    assert len(history.found().lost_wakeups) == 1


def test_who_waits_for_a_holder_or_a_server_or_is_dead_was_not_forgotten(history):
    token = history.hold("a", 1)
    history.want("b", queued=True)
    history.now += 5
    history.note("harness", "away")
    history.release("a", token)
    history.now += 5
    history.note("harness", "back")
    history.kill("b")
    history.now += 5
    history.note("harness", "fault", kind="any")
    assert history.found().lost_wakeups == []


def test_who_waits_for_the_lease_of_a_dead_holder_was_not_forgotten(history):
    """It may have been renewed just before."""
    history.hold("a", 1, lease=8)
    history.want("b", queued=True)
    history.kill("a")
    history.now += 10
    history.note("harness", "fault", kind="any")
    assert history.found().lost_wakeups == []
    history.now += 5
    history.note("harness", "fault", kind="any")
    assert len(history.found().lost_wakeups) == 1


def test_a_release_is_handed_over_to_who_stands_in_the_queue(history):
    token = history.hold("a", 1)
    asked = history.want("b", queued=True)
    history.release("a", token)
    history.now += 1
    history.release("b", history.hold("b", 2, asked=asked))
    history.hold("c", 3)
    assert history.found().hand_overs == [3.0]


def test_the_time_until_a_lock_is_free_counts_from_its_holders_death(history):
    history.hold("a", 1)
    history.kill("a")
    asked = history.want("b")
    history.now += 4
    history.hold("b", 2, asked=asked)
    assert history.found().until_free == [6.0]


def test_the_time_until_a_lock_is_free_counts_from_when_it_came_free(history):
    token = history.hold("a", 1)
    asked = history.want("b")
    history.note("harness", "free")
    history.release("a", token)
    history.hold("b", 2, asked=asked)
    assert history.found().until_free == [3.0]


def test_who_holds_and_is_told_that_it_does_not_is_found(history):
    token = history.hold("a", 1)
    history.note("a", "release", token=token)
    history.note("a", "error", during="release", type="LockNotOwnedError", token=token)
    assert len(history.found().not_owned) == 1


def test_who_is_told_that_it_lost_what_it_held_is_found(history):
    history.note("a", "lost", token=history.hold("a", 1))
    assert len(history.found().not_owned) == 1


@pytest.mark.parametrize("why", ["late", "taken"])
def test_who_lost_it_may_be_told_so(history, why):
    token = history.hold("a", 1, lease=0.5 if why == "late" else 100)
    if why == "taken":
        history.note("harness", "taken")
    history.note("a", "release", token=token)
    history.note("a", "error", during="release", type="LockLost", token=token)
    assert history.found().not_owned == []


@pytest.mark.parametrize("too_early", [False, True])
def test_who_is_told_before_it_can_have_been_taken_is_found(history, too_early):
    token = history.hold("a", 1)
    since = history.now
    history.note("a", "lost", token=token)
    history.note("harness", "taken", since=since + 2 if too_early else since)
    assert len(history.found().not_owned) == too_early


def test_a_lock_that_is_held_for_nobody_is_a_phantom(history):
    token = history.hold("a", 1)
    history.release("a", token)
    history.note("harness", "stands", tokens=[token])
    assert len(history.found().phantoms) == 1


def test_a_lock_that_a_client_still_held_when_it_ended_is_none(history):
    history.note("harness", "stands", tokens=[history.hold("a", 1)])
    assert history.found().phantoms == []


def test_who_died_while_it_waited_may_have_been_let_in(history):
    history.want("a", queued=True)
    history.kill("a")
    history.note("harness", "stands", tokens=["any"])
    assert history.found().phantoms == []


def test_each_who_died_while_it_waited_may_have_been_let_in_once(history):
    history.want("a", queued=True)
    history.kill("a")
    history.note("harness", "stands", tokens=["any", "another"])
    assert len(history.found().phantoms) == 1


def test_who_died_while_it_did_not_wait_was_not_let_in(history):
    history.release("a", history.hold("a", 1))
    history.kill("a")
    history.note("harness", "stands", tokens=["any"])
    assert len(history.found().phantoms) == 1


def test_what_the_harness_found_at_the_end_is_told(history):
    history.note("harness", "phantom")
    history.note("harness", "double")
    history.note("harness", "left", key="a")
    found = history.found()
    assert [len(each) for each in (found.phantoms, found.doubles, found.leftovers)] == [1, 1, 1]


# Planted faults: all are found in one go, each at a lock of its own

FINDS = {
    "": "stale_without_fence",
    "releases without comparing tokens": "overlaps",
    "does not renew, and does not know": "overlaps",
    "lets in who came last": "overtakings",
    "has one fencing token for all": "stale",
    "waits without showing life": "lost_wakeups",
    "leaves a key behind": "leftovers",
    "denies that it was held": "not_owned",
}


@pytest.fixture(scope="module")
def found():
    with planting(planted_faults, runs=len(FINDS)) as setting:
        found = setting.happen()
        assert setting.troubles == {}
        yield found


@contextmanager
def planting(body, *, runs, **facts):
    scenario = Scenario(0, "planted faults", body, runs=runs, short=runs, **facts)
    setting = Setting(scenario, seed=1, short=True, make="valkey-9.1")
    try:
        yield setting
    finally:
        setting.close()


def planted_faults(setting: Setting) -> None:
    """A client stands still between its look at the lock and its write, for longer than its lease.
    Another one, of two that wait, is let in and writes; then the first goes on, and lets go."""
    setting.settled_within = 5
    node, crew = setting.node(), setting.crew()
    faults = list(FINDS)

    def body(run: Run) -> None:
        late, *others = [run.client(crew, f"client {number}", node.url) for number in range(3)]
        fault = faults[run.number - 1]
        for client in (late, *others):
            assert not fault or client.ask("tests.faults.planted:plant", fault=fault)
        late.ask("acquire", lock=run.lock, timeout=2)
        for client in others:
            client.start("acquire", lock=run.lock)
            client.wait_for("queued")
        late.start("write", lock=run.lock, between="stop")
        late.stops_itself()
        first = wait_until(
            lambda: next((each for each in others if each.has_answered()), None), timeout=20
        )
        [second] = {*others} - {first}
        first.answer()
        first.ask("write", lock=run.lock)
        late.resume()
        late.answer()
        late.ask("check", lock=run.lock)
        late.ask("release", lock=run.lock)
        second.has_answered(1)  # it should not, yet
        first.ask("release", lock=run.lock)
        second.answer()
        second.ask("release", lock=run.lock)

    setting.each(body, lanes=len(FINDS))


@pytest.mark.slow
@pytest.mark.xdist_group("planted")
@pytest.mark.parametrize("fault", FINDS)
def test_what_is_planted_is_found(found, fault):
    assert about(found, fault, FINDS[fault])


@pytest.mark.xdist_group("planted")
def test_nothing_is_found_where_nothing_is_planted(found):
    assert {name for name in WRONG if about(found, "", name)} == {"stale_without_fence"}


def about(found, fault, name):
    """What was found of the lock at which that fault was planted."""
    lock = f"run {[*FINDS].index(fault) + 1}"
    return [text for text in getattr(found, name) if lock in text]


# Those that only a scenario made for them finds

LATE, TELLS_NOBODY = "counts leases from the reply", "tells nobody of a release"


@pytest.mark.slow
def test_a_lease_that_counts_from_the_reply_is_found_in_each_way_to_get_one(monkeypatch):
    monkeypatch.setattr(late, "LATE", (0.5, 0.7))  # the lease lasts until then
    with planting(partial(late.hold_up, planted=LATE), runs=len(late.WAYS) * 2) as setting:
        found = setting.happen()
        assert setting.troubles == {}
    locks = {overlap.partition(":")[0] for overlap in found.overlaps}
    ways = {late.WAYS[int(lock.removeprefix("run ")) % len(late.WAYS)] for lock in locks}
    assert ways >= {late.acquisition, late.extension, late.renewal}


@pytest.mark.slow
def test_a_release_of_which_nobody_is_told_is_found():
    body = partial(take_turns, seconds=0.5, first=COME_SELDOM, waiters=3, planted=TELLS_NOBODY)
    with planting(body, runs=1, at_once=True) as setting:
        row = setting.row()
    assert row.lost_wakeups > 0


@pytest.mark.slow
def test_a_release_of_which_nobody_is_told_is_found_where_who_waits_comes_to_see():
    with planting(partial(pass_to_and_fro, planted=TELLS_NOBODY), runs=1, at_once=True) as setting:
        failures = setting.row().failures
    assert any("hand-overs took" in failure for failure in failures)
    with planting(pass_to_and_fro, runs=1, at_once=True, faults=0) as setting:
        assert not setting.row().failures


def pass_to_and_fro(setting: Setting, planted: str = "") -> None:
    """Two clients wait for each other."""
    node, crew = setting.node(), setting.crew()

    def body(run: Run) -> None:
        run.fault(planted)
        one, other = (run.client(crew, who, node.url) for who in ("one", "other"))
        for client in (one, other):
            assert not planted or client.ask("tests.faults.planted:plant", fault=planted)
        one.ask("acquire", lock=run.lock)
        for _ in range(10):
            since = now()
            other.start("acquire", lock=run.lock)
            other.wait_for("queued", after=since)
            one.ask("release", lock=run.lock)
            other.answer()
            one, other = other, one
        one.ask("release", lock=run.lock)

    setting.each(body)


def test_each_fault_that_can_be_planted_is():
    assert {"", *SCRIPTS, *FLOWS} == {*FINDS, *IN_FAILOVERS, LATE, TELLS_NOBODY}
