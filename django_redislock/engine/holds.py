"""What the owners of a lock have by entering it."""

import asyncio
import math
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from ..backends import Server
from ..identity import Owner, is_alive
from .lease import Lease


class Hold:
    """What an owner has by entering a lock once: one lease, or several of which `needed` must
    last."""

    def __init__(
        self,
        owner: Owner,
        leases: Sequence[Lease],
        needed: int,
        lock: "weakref.ref[Any]",
        when_lost: "Callable[[Hold, Lease, bool], None]",
    ) -> None:
        self.owner = owner
        self.leases = leases
        self.needed = needed
        self.lock = lock
        self.is_first = not all(lease.entered for lease in leases)
        self.by_with = False
        self.block: object = None
        """Identifies the ``with`` statement that acquired the lock, if there is one."""
        self.watch: weakref.ref[Any] | None = None
        """Calls back when that block ends."""
        self.drop_watch: weakref.ref[Any] | None = None
        """Warns if the lock object is garbage-collected before the hold is released."""
        if self.is_first:
            # Not __del__, which would also run, and could swallow an interrupt, after a release.
            self.drop_watch = weakref.ref(lock(), partial(_warn_dropped, leases, needed))
        self.acquisition: Any = None  # who listens to it is told of
        self._when_lost = when_lost
        self._told = threading.Lock()  # renewals of several servers may find it out at once
        self._aborted = False

    @property
    def server(self) -> Server:
        return self.leases[0].server

    @property
    def token(self) -> str:
        return self.leases[0].token

    @property
    def fence_token(self) -> int:
        return self.leases[0].fence_token

    @property
    def lost(self) -> bool:
        return [lease.lost for lease in self.leases].count(False) < self.needed

    @property
    def deadline(self) -> float:
        """Until when it lasts, unless it is renewed."""
        ends = sorted(lease.deadline for lease in self.leases if not lease.lost)
        return ends[-self.needed] if len(ends) >= self.needed else -math.inf

    @property
    def inherited(self) -> bool:
        return self.leases[0].inherited

    def is_newly_lost(self) -> bool:
        """True once."""
        return self.lost and self._told.acquire(blocking=False)

    def tell_lost(self, lease: Lease, found_by_holder: bool) -> None:
        self._when_lost(self, lease, found_by_holder)

    def abort(self) -> None:
        """Cancel the asyncio task that holds it. A thread can't be: it has to look at `lost`."""
        task = self._task()
        if task:
            self._aborted = True
            task.cancel()

    def takes_back(self, *errors: BaseException | None) -> bool:
        """Whether one of these errors is the cancellation that `abort` asked for, and no other
        is asked for; it is then taken back, as `asyncio.timeout` does."""
        task = self._task()
        if not (self._aborted and task):
            return False
        self._aborted = False
        others = task.uncancel()
        return not others and any(isinstance(each, asyncio.CancelledError) for each in errors)

    def _task(self) -> "asyncio.Task[object] | None":
        first = self.leases[0]
        owner = first.owner()
        return owner if first.book.on_loop and isinstance(owner, asyncio.Task) else None


def _warn_dropped(
    leases: Sequence[Lease],
    needed: int,
    lock: "weakref.ref[Any]",
    is_finalizing: Callable[[], bool] = sys.is_finalizing,
) -> None:
    if is_finalizing() or leases[0].inherited:
        return
    held = [lease for lease in leases if not (lease.over or lease.lost)]
    if len(held) >= needed:
        names = ", ".join(sorted({repr(lease.keys.name) for lease in held}))
        warnings.warn(
            f"Lock {names} was not released before its lock object was garbage-collected. Keep a "
            "reference to the lock object and release it.",
            ResourceWarning,
            stacklevel=2,
        )


class Holds:
    """The holds on one lock object, in the order in which they were got.

    To add one, to remove it and to copy all is one step for other threads, which do the same
    meanwhile.
    """

    def __init__(self) -> None:
        self._all: list[Hold] = []
        self._ended_early: WeakKeyDictionary[Owner, int] | None = None

    def add(self, hold: Hold) -> None:
        self._all.append(hold)
        if len(self._all) > 1:
            self._forget_the_dead()

    def remove(self, hold: Hold) -> None:
        """Once removed, does nothing."""
        hold.drop_watch = None
        with suppress(ValueError):
            self._all.remove(hold)

    def of(self, owner: Owner) -> Hold | None:
        """The last one that `owner` has."""
        for hold in self._all[::-1]:
            if hold.owner is owner:
                return None if hold.inherited else hold
        return None

    def begin_block(
        self, owner: Owner, block: object = None, watch: "weakref.ref[Any] | None" = None
    ) -> None:
        """Record that `owner` acquired the lock by a ``with`` statement."""
        if hold := self.of(owner):  # one that all threads share may be gone again
            hold.by_with, hold.block, hold.watch = True, block, watch

    def watched_by(self, watch: "weakref.ref[Any]") -> Hold | None:
        """Return the hold of the block that `watch` watches, unless it was released."""
        return next((hold for hold in self._all.copy() if hold.watch is watch), None)

    def end_early(self, owner: Owner, hold: Hold) -> None:
        """`owner` releases it by hand. If it has it by ``with``, that block has nothing of its
        own to release at its end, and no more to do with what another owner has."""
        if hold.by_with:
            ended = self._ended_early = self._ended_early or WeakKeyDictionary()
            ended[owner] = ended.get(owner, 0) + 1

    def of_block(self, owner: Owner, block: object = None) -> Hold | None:
        """Return the hold that the end of a ``with`` block of `owner` releases.

        This is the block's own hold if it is known, because blocks of one object need not be
        nested: a generator may leave its block later than its caller.
        """
        for own in self._all.copy():
            if block and own.block is block and not own.inherited:
                last = self.of(own.owner)
                acquired_again = own.lost and last and not last.by_with
                return last if acquired_again else own
        early = self._ended_early
        if early and early.get(owner) and owner not in self._owners():
            early[owner] -= 1
            return None
        return self.seen_by(owner)

    def seen_by(self, owner: Owner) -> Hold | None:
        """The owner's own, else the only one that there is: others may look on, and a generator
        may be closed by another thread or task than the one in which it entered ``with``."""
        return self.of(owner) or self._of_the_only_owner()

    def any_lost(self) -> bool:
        return any(hold.lost for hold in self._all.copy() if not hold.inherited)

    def _of_the_only_owner(self) -> Hold | None:
        owners = self._owners()
        return self.of(*owners) if len(owners) == 1 else None

    def _owners(self) -> set[Owner]:
        return {hold.owner for hold in self._all.copy()}

    def _forget_the_dead(self) -> None:
        # Who ended without a release can't release any more.
        for owner in self._owners():
            if not is_alive(weakref.ref(owner)):
                holds = [hold for hold in self._all.copy() if hold.owner is owner]
                if all(hold.lost for hold in holds):
                    for hold in holds:
                        self.remove(hold)
