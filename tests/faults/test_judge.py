"""The judge finds overlaps, stale writes and waits in vain in hand-written histories. The planted
faults are in `test_planted.py`.
"""

import pytest

from .judge import LOOKED, RELEASED, judge

LOCK = "a"


class History:
    """Hand-written events of one lock, each one second after the previous one. They have no time
    by the clock of leases."""

    def __init__(self):
        self.events = []
        self.now = 0.0

    def note(self, who, what, **facts):
        self.now += 1
        self.events.append({"at": self.now, "who": who, "what": what, "lock": LOCK, **facts})

    def want(self, who, *, weight=1, capacity=1):
        self.note(who, "want", weight=weight, capacity=capacity)

    def enter(self, who, fence=1, *, asks=True, **room):
        room = {"weight": 1, "capacity": 1, **room}
        if asks:
            self.want(who, **room)
        self.note(who, "enter", fence=fence, **room)

    def release(self, who):
        self.note(who, "leave", how=RELEASED)
        self.note(who, "released")

    def write(self, who, fence, **facts):
        place = sum(event["what"] == "write" for event in self.events)
        self.note(who, "write", fence=fence, place=place, **facts)

    def kill(self, who):
        self.events.append({"at": self.now, "who": "harness", "what": "killed", "client": who})

    def pause(self, who):
        self.note("harness", "stopped", client=who)
        self.note("harness", "resumed", client=who)

    def verdict(self, within=3, **options):
        return judge(self.events, within=within, **options)


@pytest.fixture
def history():
    return History()


# Overlaps


@pytest.mark.parametrize("is_paused", [True, False])
def test_two_clients_inside_overlap(history, is_paused):
    history.enter("a")
    if is_paused:
        history.pause("a")
    history.enter("b")
    history.release("b")
    history.release("a")
    verdict = history.verdict()
    assert len(verdict.paused) == is_paused
    assert len(verdict.overlaps) == (not is_paused)


def test_a_pause_outside_explains_no_overlap(history):
    history.pause("a")
    history.enter("a")
    history.enter("b")
    history.pause("a")
    history.release("b")
    history.release("a")
    assert len(history.verdict().overlaps) == 1


def test_a_client_that_was_paused_before_it_entered_overlaps_as_a_paused_one(history):
    history.want("late")
    history.enter("b")
    history.pause("late")
    history.enter("late", asks=False)
    history.release("late")
    history.release("b")
    assert len(history.verdict().paused) == 1


@pytest.mark.parametrize("how", ["releases", "looks", "is killed", "asks again"])
def test_a_client_that_has_left_does_not_overlap(history, how):
    history.enter("a")
    if how == "releases":
        history.release("a")
    elif how == "looks":
        history.note("a", "leave", how=LOOKED)
    elif how == "is killed":
        history.kill("a")
    else:
        history.want("a")
    history.enter("b")
    assert history.verdict().all_overlaps == []


def test_a_release_that_has_begun_is_no_longer_inside(history):
    history.enter("a")
    history.note("a", "leave", how=RELEASED)
    history.enter("b")
    history.note("a", "released")
    assert history.verdict().all_overlaps == []


def test_readers_are_inside_together_and_a_writer_alone(history):
    reader, writer = {"weight": 1, "capacity": 100}, {"weight": 100, "capacity": 100}
    history.enter("a", **reader)
    history.enter("b", **reader)
    history.enter("c", **reader)
    history.release("c")
    history.enter("c", **writer)
    for who in "cba":
        history.release(who)
    assert len(history.verdict().overlaps) == 1


def test_what_was_logged_later_than_it_happened_is_ignored(history):
    history.enter("a")
    history.events.append({"t": 1, "who": "a", "what": "want", "lock": LOCK})
    history.enter("b")
    history.release("b")
    history.release("a")
    assert len(history.verdict().overlaps) == 1


# Writes


@pytest.mark.parametrize("fences", [(1, 2), (2, 1), (1, 1)])
def test_a_late_write_is_stale_unless_its_token_is_smaller(history, fences):
    history.enter("a", fences[0])
    history.enter("b", fences[1])
    history.write("b", fences[1])
    history.write("a", fences[0])
    history.write("b", fences[1])
    verdict = history.verdict()
    grows = fences == (1, 2)
    assert len(verdict.stale_without_fence) == 1
    assert len(verdict.stale) == (not grows)
    assert verdict.stopped_by_token == grows
    assert len(verdict.refused_in_turn) == (fences == (2, 1))


def test_a_refused_write_of_the_last_client_is_found(history):
    history.enter("a", 2)
    history.write("a", 2)
    history.enter("b", 1)
    history.write("b", 1)
    assert len(history.verdict().refused_in_turn) == 1


def test_without_exclusion_a_client_came_later_only_if_it_asked_later(history):
    history.want("b")
    history.enter("a", 2)
    history.enter("b", 1, asks=False)
    history.write("b", 1)
    history.write("a", 2)
    assert len(history.verdict().stale_without_fence) == 1
    verdict = history.verdict(exclusive=False)
    assert (verdict.stale_without_fence, verdict.stale) == ([], [])
    history.enter("c", 1)
    history.write("c", 3)
    history.write("a", 3)
    verdict = history.verdict(exclusive=False)
    assert len(verdict.stale_without_fence) == len(verdict.stale) == 1


def test_a_client_that_looks_and_leaves_is_counted(history):
    history.enter("a")
    history.enter("b")
    history.note("a", "leave", how=LOOKED)
    assert history.verdict().stopped_by_look == 1


# Waiting


@pytest.mark.parametrize("to_the_end", [True, False])
def test_a_client_that_is_not_let_in_waits_in_vain(history, to_the_end):
    history.enter("a")
    history.want("b")
    history.release("a")
    history.now += 5
    if to_the_end:
        history.note("harness", "fault", kind="any")
    else:
        history.enter("b", asks=False)
    assert len(history.verdict().waits_in_vain) == 1
    assert history.verdict(within=10).waits_in_vain == []


def test_after_a_death_the_lock_may_stay_taken(history):
    history.enter("a")
    history.want("b")
    history.kill("a")
    history.now += 20
    history.enter("b", asks=False)
    assert history.verdict().waits_in_vain == []
    assert history.verdict(free_within=18).waits_in_vain == []
    assert len(history.verdict(free_within=10).waits_in_vain) == 1


@pytest.mark.parametrize("why", ["is paused", "the server is away"])
def test_a_reason_to_wait_is_none_in_vain(history, why):
    history.enter("a")
    history.want("b")
    history.release("a")
    if why == "is paused":
        history.pause("b")
    else:
        history.note("harness", "away")
    history.now += 20
    if why == "the server is away":
        history.note("harness", "back")
    history.enter("b", asks=False)
    assert history.verdict().waits_in_vain == []
