"""Who knew too late, and what counted although no replica had it: in histories written by hand."""

import math

import pytest

from .behind import on_no_replica
from .checker import check
from .outcome import AT_ONCE, too_late


def behind(seconds, *clients):
    """From 10 to 20."""
    about = {"locks": ["a"], "clients": list(clients)}
    return {"what": "behind", "t": 20, "since": 10, "seconds": seconds, **about}


def lease(sent, t, who="one", lock="a"):
    return {"what": "kept", "who": who, "lock": lock, "sent": sent, "t": t}


@pytest.mark.parametrize(
    ("lag", "one"),
    [
        (behind(0.2), lease(12, 12.1)),
        (behind(math.inf), lease(12, 19)),
        (behind(math.inf, "one"), lease(12, 19)),
    ],
)
def test_a_lease_that_counts_before_a_replica_can_have_it_is_found(lag, one):
    assert len(list(on_no_replica([lag, one]))) == 1


@pytest.mark.parametrize(
    ("lag", "one"),
    [
        (behind(0.2), lease(12, 12.3)),
        (behind(0.2), lease(9.9, 10)),
        (behind(0.2), lease(19.9, 20)),
        (behind(0.2), lease(21, 21)),
        (behind(0.2), lease(12, 12.1, lock="b")),
        (behind(math.inf), lease(12, 21)),
        (behind(math.inf, "other"), lease(12, 19)),
        (behind(0), lease(12, 12.1)),
    ],
)
def test_a_lease_that_a_replica_may_have_is_none(lag, one):
    assert not list(on_no_replica([lag, one]))


def held(*events):
    """A history of a lock whose lease ends at 10."""
    kept = lease(2, 2.1) | {"deadline": 10, "token": 1}
    about = {"fence": 1, "weight": 1, "capacity": 1, "asked": 2}
    own = [{"lock": "a", "who": "one", "token": 1, **event} for event in events]
    return check([kept, kept | about | {"what": "held", "t": 2.2}, *own])


@pytest.mark.parametrize("t", [9, 10 + AT_ONCE / 2])
def test_a_loser_that_is_told_by_the_end_of_its_lease_knows_in_time(t):
    assert not list(too_late(held({"what": "lost", "t": t})))


def test_who_learns_of_a_lock_when_it_is_over_is_told_at_once():
    late = lease(2, 15) | {"deadline": 10, "token": 1}
    about = {"fence": 1, "weight": 1, "capacity": 1, "asked": 2}
    held, lost = ({**late, "what": what, "t": 15.1} for what in ("held", "lost"))
    assert not list(too_late(check([late, held | about, lost])))


def test_a_loser_that_is_told_later_is_found():
    assert len(list(too_late(held({"what": "lost", "t": 10.1 + AT_ONCE})))) == 1


def test_who_takes_it_for_held_after_the_end_of_its_lease_is_found():
    looked, lost = {"what": "checked", "t": 10.01}, {"what": "lost", "t": 10.02}
    assert len(list(too_late(held(looked, lost)))) == 1


def test_who_stood_still_or_was_letting_go_is_not_told_in_time():
    lost = {"what": "lost", "t": 15}
    assert not list(too_late(held({"what": "release", "t": 9}, lost)))
    stops = [
        {"what": what, "t": t, "client": "one"} for what, t in (("stopped", 3), ("resumed", 14))
    ]
    assert not list(too_late(held(*stops, lost)))
