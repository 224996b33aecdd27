"""Two threads that use one `HoldTable`: before each bytecode of one method, the other thread calls
another method. Python may switch threads between any two bytecodes."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from threading import Thread
from types import FrameType
from typing import Any
from weakref import ref

import pytest

from django_redislock.backends import servers
from django_redislock.engine.leases import Hold, HoldTable, Lease
from django_redislock.identity import Owner, SharedOwner

MANY = 200
"""More bytecodes than any of the methods has."""


def held(owner: Owner) -> Hold:
    of = servers["default"]
    lease = Lease(
        *(of, of.keys.of("a"), "token", 30.0),
        owner=ref(owner),
        kind="mutex",
        weight=1,
        is_renewed=True,
    )
    return Hold(owner, [lease], 1, ref(owner))


@contextmanager
def before_step(
    number: int, function: Any, act: Callable[..., object], *args: object
) -> Iterator[None]:
    """Call `act` before the given bytecode of the function, counted from 1, or after the last."""
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
    """The owners of two threads, which may be one shared owner."""
    if request.param == "apart":
        return Thread(), Thread()
    return (anybody := SharedOwner()), anybody


def test_what_one_adds_as_another_adds_stays(owners: tuple[Owner, Owner]) -> None:
    for number in range(1, MANY):
        holds, mine, other = HoldTable(), *map(held, owners)
        with before_step(number, HoldTable.remove_of_dead_owners, holds.append, other):
            holds.append(mine)
            holds.remove_of_dead_owners()
        first, last = sorted((mine, other), key=lambda hold: holds.of(hold.owner) is hold)
        assert holds.of(last.owner) is last
        holds.remove(last)
        assert holds.of(first.owner) is first


def test_a_thread_adds_a_hold_while_another_removes_one(owners: tuple[Owner, Owner]) -> None:
    for number in range(1, MANY):
        holds, added, removed = HoldTable(), *map(held, owners)
        holds.append(removed)
        with before_step(number, HoldTable.remove, holds.append, added):
            holds.remove(removed)
        assert holds.of(added.owner) is added
        holds.remove(added)
        assert holds.of(removed.owner) is None


@pytest.mark.parametrize("onlooker", [None, Thread()], ids=["its owner", "another"])
@pytest.mark.parametrize("look", [HoldTable.of, HoldTable.visible_to, HoldTable.of_block])
def test_who_looks_as_it_is_removed_sees_it_or_none(look: Any, onlooker: "Owner | None") -> None:
    for number in range(1, MANY):
        holds, hold = HoldTable(), held(Thread())
        holds.append(hold)
        with before_step(number, look, holds.remove, hold):
            assert look(holds, onlooker or hold.owner) in (hold, None)
