"""Falsehoods are found."""

import pytest

from .events import Event
from .falsehoods import Race


def event(what: str, t: float, who: str = "holder", **facts: object) -> Event:
    return {"what": what, "t": t, "who": who, "lock": "a", **facts}


def holds(token: str, fence: int, t: float, who: str = "holder") -> Event:
    return event("held", t, who, token=token, fence=fence, asked=t - 1, weight=1, capacity=1)


def tries(token: str | None, t: float, *tokens: str, told: bool | None = None) -> Event:
    about = {"aimed": token, "tokens": tokens, "told": bool(tokens) if told is None else told}
    return event("forced", t, "operator", asked=t - 0.5, **about)


HELD = [event("want", 0, weight=1, capacity=1), holds("one", 1, 1)]
RELEASED = [*HELD, event("release", 2, token="one"), event("released", 3, token="one")]
TOLD = [*HELD, event("lost", 6, token="one")]


@pytest.mark.parametrize(
    ("events", "ends"),
    [
        (RELEASED, {1: ("released", 2.5)}),
        ([*TOLD, tries("one", 5, "one")], {1: ("forced", 4.8)}),
        ([*TOLD, tries(None, 5, "one"), tries("one", 5)], {1: ("forced", 4.8)}),
        ([*RELEASED, tries("one", 2.6)], {1: ("released", 2.5)}),
    ],
)
def test_what_is_true_is_no_falsehood(events, ends):
    assert not list(Race(events, ends).falsehoods())


@pytest.mark.parametrize(
    ("events", "ends", "found"),
    [
        ([*TOLD, tries("one", 5, "one"), tries("one", 5, "one")], {1: ("forced", 4.8)}, "ended 2"),
        (TOLD, {1: ("released", 2)}, "was told that it was forced"),
        (RELEASED, {1: ("forced", 2)}, "was told that it was released"),
        ([*TOLD, tries("two", 5, "one")], {1: ("forced", 4.8)}, "another than was meant"),
        ([*TOLD, tries("one", 5, "one", told=False)], {1: ("forced", 4.8)}, "what it read"),
        ([*HELD, tries("one", 5)], {}, "nobody had ended it"),
        (
            [*TOLD, tries("one", 4, "one"), event("extended", 5.5, token="one", asked=5)],
            {1: ("forced", 3.8)},
            "extended after it was forced",
        ),
    ],
)
def test_falsehoods_are_found(events, ends, found):
    assert found in "; ".join(Race(events, ends).falsehoods())


def test_overlaps_of_those_who_were_forced_are_theirs_alone():
    next_one = holds("two", 2, 5, "next")
    assert not list(Race([*TOLD, next_one], {1: ("forced", 4.8)}).overlaps())
    assert list(Race([*TOLD, next_one], {}).overlaps())


def test_who_was_forced_before_it_knew_begins_anew():
    events = [*RELEASED, tries(None, 0.5, "one")]
    [hold] = Race(events, {0: ("forced", 0.3), 1: ("released", 2.5)}).begun_anew()
    assert hold.fence == 1
    assert not list(Race(RELEASED, {1: ("released", 2.5)}).begun_anew())
