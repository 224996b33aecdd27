"""Those who use locks while a server is replaced: some take turns, and one keeps a lock that
others wait for."""

from collections.abc import Callable
from itertools import count
from typing import Any

from django_redislock.clock import now
from tests.tools import wait_until

from .crew import KEYS, Client
from .scenario import Run

LEASES = 1.5, 6.0

SETTLED_WITHIN = 30.0
"""Seconds after a failover within which everybody has to have had a turn."""

LOOPS = {
    "first": "loop",
    "second": "loop",
    "asyncio": "tests.faults.work:aloop",
}


class Users:
    """`make` makes a client by what it is to do."""

    def __init__(self, run: Run, make: Callable[[str], Client], min_replicas: int = 0) -> None:
        options = {"timeout": run.random.uniform(*LEASES), "min_replicas": min_replicas}
        self.keeper = make("keeper")
        self.keeper.start("tests.faults.work:keep", lock=kept(run), **options)
        self.keeper.wait_for("held")
        self.waiters = [make("waiting first"), make("waiting second")]
        for waiter in self.waiters:
            waiter.start("loop", lock=kept(run), **options)
            waiter.wait_for("queued")
        self.in_turns = {who: make(who) for who in LOOPS}
        for who, client in self.in_turns.items():
            client.start(LOOPS[who], lock=run.lock, **options)
            client.wait_for("released")

    def go_on(self) -> Any:
        """Return when all of them have done so; what the keeper says."""
        since = now()
        for client in self.in_turns.values():
            client.wait_for("released", after=since, timeout=SETTLED_WITHIN)
        wait_until(lambda: self._keeper_knows(since), timeout=SETTLED_WITHIN)
        self.keeper.start("sleep", seconds=0)
        for waiter in self.waiters:
            waiter.wait_for("released", after=since, timeout=SETTLED_WITHIN)
        return self.keeper.answer()

    def _keeper_knows(self, since: float) -> bool:
        """Whether it still holds, or not."""
        renewed = self.keeper.last("kept")
        return self.keeper.has_answered() or bool(renewed and renewed["t"] > since)


def kept(run: Run) -> str:
    """The lock that is kept: of the same bucket as the run's, and so of the same slot."""
    names = (f"{run.lock} kept {number}" for number in count())
    return next(name for name in names if KEYS.of(name).bucket == KEYS.of(run.lock).bucket)


def taken(run: Run) -> None:
    """Note that whoever held a lock of this run may not hold it any more."""
    for lock in (run.lock, kept(run)):
        run.log.write("taken", lock=lock)
