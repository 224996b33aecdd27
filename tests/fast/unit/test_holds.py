"""Threads that use one lock object at the same time: before each step of what one does, another
does all of its own. Between any two of these steps Python may change threads."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from threading import Thread
from types import FrameType
from typing import Any, cast
from weakref import ref

import pytest

from django_redislock.engine.holds import Hold, Holds
from django_redislock.engine.lease import Lease
from django_redislock.identity import Owner, SharedOwner

MANY = 200
"""More steps than any of the functions has."""


class Lasting:
    """A lease, as far as is asked here."""

    entered = inherited = lost = False


def held(owner: Owner) -> Hold:
    return Hold(owner, [cast(Lease, Lasting())], 1, ref(owner), lambda *_: None)


@contextmanager
def before_step(
    number: int, function: Any, act: Callable[..., object], *args: object
) -> Iterator[None]:
    """Act before that step of the function, from 1; after it, if it has not so many."""
    steps = count(1)

    def trace(frame: FrameType, event: str, about: Any) -> Any:
        if frame.f_code is not function.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and next(steps) == number:
            act(*args)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
    if next(steps) <= number:
        act(*args)


@pytest.fixture(params=["apart", "as one"])
def owners(request: pytest.FixtureRequest) -> tuple[Owner, Owner]:
    """Of two threads, which may count as one holder."""
    if request.param == "apart":
        return Thread(), Thread()
    return (anybody := SharedOwner()), anybody


def test_what_one_adds_as_another_removes_its_own_stays(owners: tuple[Owner, Owner]) -> None:
    for number in range(1, MANY):
        holds, mine, other = Holds(), *map(held, owners)
        holds.add(other)
        with before_step(number, Holds.add, holds.remove, other):
            holds.add(mine)
        assert holds.of(mine.owner) is mine


def test_what_one_adds_as_another_adds_stays(owners: tuple[Owner, Owner]) -> None:
    for number in range(1, MANY):
        holds, mine, other = Holds(), *map(held, owners)
        with before_step(number, Holds.add, holds.add, other):
            holds.add(mine)
        first, last = sorted((mine, other), key=lambda hold: holds.of(hold.owner) is hold)
        assert holds.of(last.owner) is last
        holds.remove(last)
        assert holds.of(first.owner) is first


def test_what_one_removes_as_another_adds_is_gone(owners: tuple[Owner, Owner]) -> None:
    for number in range(1, MANY):
        holds, mine, other = Holds(), *map(held, owners)
        holds.add(mine)
        with before_step(number, Holds.remove, holds.add, other):
            holds.remove(mine)
        assert holds.of(other.owner) is other
        holds.remove(other)
        assert holds.of(mine.owner) is None


@pytest.mark.parametrize("onlooker", [None, Thread()], ids=["its owner", "another"])
@pytest.mark.parametrize("look", [Holds.of, Holds.seen_by, Holds.of_block])
def test_who_looks_as_it_is_removed_sees_it_or_none(look: Any, onlooker: "Owner | None") -> None:
    for number in range(1, MANY):
        holds, hold = Holds(), held(Thread())
        holds.add(hold)
        with before_step(number, look, holds.remove, hold):
            assert look(holds, onlooker or hold.owner) in (hold, None)
