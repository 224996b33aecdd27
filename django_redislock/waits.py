"""Who waits for whom: executions that wait for one lock while they hold another.

An execution is a thread, an asyncio task or a Celery task in one process. It is recognized by all
that it has recorded about itself, so two processes with the same host name and pid differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import chain
from typing import NamedTuple

from .backends import servers
from .engine import queries
from .engine.runners import run
from .lock_state import current_holds, is_queued
from .manager import LockManager
from .snapshots import Holder, Holding, LockInfo, Waiter
from .text import read_at

MAX_LOCKS = 1000
"""How many locks are searched for a chain of waits: those whose leases end first."""

MAX_QUEUES = 50
"""How many queues are read, in one request: those of the longest waits for an execution."""

MAX_WAITERS = 20
"""How many waiters of each queue are read."""

MAX_CHAIN = 20
"""How many waits of a chain are shown."""


@dataclass(frozen=True, slots=True, eq=False)
class Dependency:
    """An execution that waits for a lock, and those that hold it."""

    name: str
    """The lock's name. Untrusted."""

    capacity: int
    """The capacity of the lock."""

    needed: int
    """The largest weight in its queue up to this waiter, which no later one overtakes."""

    waiter: Waiter
    holdings: tuple[Holding, ...]

    also_holds: tuple[str, ...]
    """The names of the locks that the waiter holds meanwhile. Untrusted."""

    def holding_of(self, waiter: Waiter) -> Holding | None:
        """Return the hold of a waiter, if it waited when its hold was read."""
        for each in self.holdings:
            if each.holder == waiter.holder and waiter.since <= read_at(each):
                return each
        return None

    def leads_to(self, other: Dependency) -> bool:
        """Return whether one of the holders waits for the other lock."""
        return self.holding_of(other.waiter) is not None

    def is_blocked_by(self, others: Iterable[Dependency]) -> bool:
        """Return whether holders that wait themselves keep this one out, or a waiter before it in
        the queue. If not, the end of another hold can let it in."""
        waiters = {each.waiter.holder for each in others}
        stuck = sum(each.weight for each in self.holdings if each.holder in waiters)
        return stuck > 0 and stuck + self.needed > self.capacity


class Chain(NamedTuple):
    """The waits that one lock is part of."""

    waits: list[Dependency]
    deadlock: list[Dependency]


class Dependencies:
    """The waits on one server in which a waiter holds another lock, or a holder waits for one."""

    def __init__(self, found: Iterable[Dependency]) -> None:
        self._of_lock: dict[str, list[Dependency]] = defaultdict(list)
        self._of_waiter: dict[Holder, list[Dependency]] = defaultdict(list)
        self._of_holder: dict[Holder, list[Dependency]] = defaultdict(list)
        for each in found:
            self._of_lock[each.name].append(each)
            self._of_waiter[each.waiter.holder].append(each)
            for holding in each.holdings:
                self._of_holder[holding.holder].append(each)

    def chain(self, name: str) -> list[Dependency]:
        """Return the waits that lead to a lock or from its holders, the furthest waiter first.
        Empty if none of its waiters holds another lock, and no holder waits for one."""
        own = self._of_lock[name]
        before = _reached(own, self._before)
        after = _reached(own, self._after)
        linked = [each for each in own if each.also_holds or self._after(each)]
        return list(dict.fromkeys([*reversed(before), *linked, *after]))[:MAX_CHAIN]

    def deadlocks(self) -> list[list[Dependency]]:
        """Return cycles of waits that have no wait in common."""
        left = [each for waits in self._of_lock.values() for each in waits]
        found = []
        while cycle := self.deadlock(left):
            found.append(cycle)
            left = [each for each in left if each not in cycle]
        return found

    def deadlock(self, waits: Sequence[Dependency]) -> list[Dependency]:
        """Return a cycle among some waits. Empty if there is none."""
        left = set(waits)

        def following(wait: Dependency) -> list[Dependency]:
            return [each for each in self._after(wait) if each in left]

        ended = left
        while ended:  # those that a holder lets in which does not wait: the rest leads to a cycle
            ended = {each for each in left if not each.is_blocked_by(following(each))}
            left = left - ended
        path: list[Dependency] = []
        # The order of the waits decides which cycle is found, so it is the same each time.
        todo = [each for each in waits if each in left]
        while todo and todo[0] not in path:
            path.append(todo[0])
            todo = following(todo[0])
        return path[path.index(todo[0]) :] if path else []

    def _after(self, wait: Dependency) -> list[Dependency]:
        of_holders = (self._of_waiter.get(each.holder, ()) for each in wait.holdings)
        return [each for each in chain.from_iterable(of_holders) if wait.leads_to(each)]

    def _before(self, wait: Dependency) -> list[Dependency]:
        return [each for each in self._of_holder[wait.waiter.holder] if each.leads_to(wait)]


def _reached(
    start: Sequence[Dependency], step: Callable[[Dependency], Iterable[Dependency]]
) -> list[Dependency]:
    """Return the waits that steps from some waits reach, the nearest first."""
    found = dict.fromkeys(start)
    todo = [*start]
    for wait in todo:
        new = [each for each in step(wait) if each not in found]
        found.update(dict.fromkeys(new))
        todo += new
    return todo[len(start) :]


def read_dependencies(
    manager: LockManager, infos: Iterable[LockInfo], name: str = ""
) -> Dependencies:
    """Read the queues with the longest waits for executions, and that of the named lock.

    The locks were read before. So a waiter that was in the queue before its own hold was read, and
    is still there now, waited all the time: no chain is made of waits of different times.
    """
    held = {info.name: info for info in infos if info.waiters or info.holders}
    names = nlargest(
        MAX_QUEUES,
        (
            each
            for each, info in held.items()
            if info.waiters and (each == name or _executions(info))
        ),
        key=lambda each: (each == name, held[each].longest_wait),
    )
    server = servers[manager.alias]
    queues = run(server.client, queries.queues(server.keys, names, MAX_WAITERS))
    waiting = {waiter.holder for queue in queues.values() for waiter in queue}
    holds_of: dict[Holder, list[tuple[str, Holding]]] = defaultdict(list)
    for info in held.values():
        for hold in _executions(info):
            holds_of[hold.holder].append((info.name, hold))
    found = []
    for each, queue in queues.items():
        needed = 0
        for waiter in queue:
            needed = max(needed, waiter.weight)
            if waiter.is_stored or not waiter.holder.process:  # it waits without a process
                continue
            holds = holds_of.get(waiter.holder, ())
            also_holds = tuple(
                dict.fromkeys(name for name, hold in holds if waiter.since <= read_at(hold))
            )
            holdings = _executions(held[each])
            if also_holds or any(hold.holder in waiting for hold in holdings):
                capacity = held[each].capacity
                found.append(
                    Dependency(each, capacity, needed, waiter, tuple(holdings), also_holds)
                )
    return Dependencies(found)


def _executions(info: LockInfo) -> list[Holding]:
    """Return the holds of executions. A task that was only sent is none."""
    return [each for each in current_holds(info) if not is_queued(each)]


def chain_of(
    manager: LockManager,
    info: LockInfo | None,
    is_visible: Callable[[LockInfo], bool] | None = None,
) -> Chain:
    """Read the waits around a lock, of the locks that a user may see."""
    if info is None or not info.waiters:
        return Chain([], [])
    others = filter(is_visible, manager.page(stop=MAX_LOCKS).infos)
    found = read_dependencies(manager, [info, *others], info.name)
    waits = found.chain(info.name)
    return Chain(waits, found.deadlock(waits))
