"""Which leases each thread, task or greenlet holds, and by which lock objects.

A `Hold` is one acquisition of a lock object: one lease, or several. A `HoldTable` has the holds of
one lock object. The registry has all leases of the process, for re-entrancy across lock objects.

Several threads use all of this, and a signal handler may interrupt it. So there is no lock here.
The leases of different owners have different keys, and each change of a list or a dict is one
step.
"""

import asyncio
import math
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, ref

from ..backends import Server
from ..identity import Owner, is_alive, running_loop
from .lease import Lease, State

_Key: TypeAlias = tuple[Server, str, Owner]
_leases: dict[_Key, list[ref[Lease]]] = {}


def register(lease: Lease, owner: Owner) -> None:
    """Record that `owner` holds the lease, until the lease ends or is garbage-collected."""
    key = lease.server, lease.keys.name, owner
    _leases[key] = [*_leases.get(key, ()), ref(lease, partial(_discard, key))]


def unregister(lease: Lease) -> None:
    """Forget a lease that ended."""
    owner = lease.owner()
    if owner is not None:
        _discard((lease.server, lease.keys.name, owner), ref(lease))


def _discard(key: _Key, ended: ref[Lease]) -> None:
    remaining = [each for each in _leases.get(key, ()) if each != ended and each() is not None]
    if remaining:
        _leases[key] = remaining
    else:
        _leases.pop(key, None)


def leases_of(owner: Owner, server: Server, name: str) -> list[Lease]:
    """Return the leases by which `owner` holds a lock, including lost ones."""
    references = _leases.get((server, name, owner))
    if references is None:
        return []
    leases = [each() for each in references]
    return [each for each in leases if each and each.state is State.HELD and not each.is_inherited]


def all_leases() -> list[Lease]:
    """Return the leases of all threads, tasks and greenlets of this process."""
    leases = [each() for references in list(_leases.values()) for each in references]
    return [lease for lease in leases if lease and not lease.is_inherited]


class Hold:
    """One acquisition of a lock object by an owner."""

    def __init__(
        self, owner: Owner, leases: Sequence[Lease], needed: int, lock: "ref[Any]"
    ) -> None:
        self.owner = owner
        self.leases = leases

        self.needed = needed
        """How many of the leases must last. If fewer do, the hold is lost."""

        self.lock = lock

        self.is_first = False
        """Whether it acquired a lease. If not, it re-entered the leases of earlier holds."""

        self.by_with = False
        """Whether a ``with`` statement acquired it."""

        self.block: object = None
        """Identifies that ``with`` statement, if it is known."""

        self.block_watch: ref[Any] | None = None
        """Its callback runs when that block ends."""

        self.signals: Any = None
        """The context of the signals about this hold, if anybody receives them."""

        self.drop_watch: ref[Any] | None = None
        """Its callback warns if the lock object is garbage-collected before the release."""

        self._loss_reported = threading.Lock()  # the renewers of several servers may find it
        self._aborted_task: asyncio.Task[object] | None = None

    def enter(self) -> None:
        """Use the leases from now on."""
        for lease in self.leases:
            if not lease.holds:
                self.is_first = True
                lease.begin_hold()
            if len(self.leases) > 1:
                lease.is_part = True
            lease.holds += [ref(self)]
        if self.is_first:
            # Not __del__: it would also run after a release, and could swallow an interrupt.
            warn = partial(_warn_dropped, self.leases, self.needed)
            self.drop_watch = ref(self.lock(), warn)

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
        """When the hold is lost unless it is renewed, on the holder's clock."""
        deadlines = sorted(lease.deadline for lease in self.leases if not lease.lost)
        return deadlines[-self.needed] if len(deadlines) >= self.needed else -math.inf

    @property
    def is_inherited(self) -> bool:
        """Whether a forked child has this copy."""
        return self.leases[0].is_inherited

    def leave(self) -> list[Lease]:
        """Return the leases that no other hold uses, so that they must be released."""
        unused = []
        for lease in self.leases:
            others = [each for each in lease.holds if each() not in (None, self)]
            if others:
                lease.holds = others
            else:
                unused.append(lease)
        return unused

    def reports_loss(self) -> bool:
        """Return whether the hold is lost and nobody was notified yet. True only once."""
        return self.lost and self._loss_reported.acquire(blocking=False)

    def abort(self) -> None:
        """Cancel the asyncio task that holds the lock. A thread must check `lost` itself.

        A task that acquired the lock by a sync method is not cancelled: its loss is found in
        another thread.
        """
        owner = self.leases[0].owner()
        if isinstance(owner, asyncio.Task) and owner.get_loop() is running_loop():
            self._aborted_task = owner
            owner.cancel()

    def takes_back_abort(self, *errors: BaseException | None) -> bool:
        """Withdraw the cancellation by `abort()`, as `asyncio.timeout` does.

        Returns:
            Whether one of the errors is that cancellation, and nobody else asked for one.
        """
        task, self._aborted_task = self._aborted_task, None
        if task is None:
            return False
        others = task.uncancel()
        return not others and any(isinstance(each, asyncio.CancelledError) for each in errors)


def holds_of(lease: Lease) -> list[Hold]:
    """Return the holds that use a lease."""
    return [hold for each in lease.holds if (hold := each())]


def should_renew(lease: Lease, is_alive: Callable[["ref[Owner]"], bool] = is_alive) -> bool:
    """Return whether a renewal is of use.

    A lease that nobody can release expires, and so do the remaining leases of a lost hold.
    """
    if not (lease.is_renewed and is_alive(lease.owner)):
        return False
    holds = holds_of(lease) if lease.is_part else []
    return not holds or any(len(hold.leases) == 1 or not hold.lost for hold in holds)


def _warn_dropped(
    leases: Sequence[Lease],
    needed: int,
    lock: "ref[Any]",
    is_finalizing: Callable[[], bool] = sys.is_finalizing,
) -> None:
    if is_finalizing() or leases[0].is_inherited:
        return
    held = [lease for lease in leases if lease.state is State.HELD and not lease.lost]
    if len(held) >= needed:
        names = ", ".join(sorted({repr(lease.keys.name) for lease in held}))
        warnings.warn(
            f"Lock {names} was not released before its lock object was garbage-collected. Keep a "
            "reference to the lock object and release it.",
            ResourceWarning,
            stacklevel=2,
        )


class HoldTable:
    """The holds of one lock object, in the order of their acquisition."""

    def __init__(self) -> None:
        self._holds: list[Hold] = []
        self._released_early: WeakKeyDictionary[Owner, int] | None = None

    def add(self, hold: Hold) -> None:
        self._holds.append(hold)
        if len(self._holds) > 1:
            self._remove_of_dead_owners()

    def remove(self, hold: Hold) -> None:
        """Remove a hold, if it is there."""
        hold.drop_watch = None
        with suppress(ValueError):
            self._holds.remove(hold)

    def of(self, owner: Owner) -> Hold | None:
        """Return the last hold of `owner`."""
        for hold in self._holds[::-1]:
            if hold.owner is owner:
                return None if hold.is_inherited else hold
        return None

    def visible_to(self, owner: Owner) -> Hold | None:
        """Return the owner's hold, or the only other owner's.

        A generator may be closed by another thread or task than the one that entered ``with``.
        """
        return self.of(owner) or self._of_only_owner()

    def any_lost(self) -> bool:
        """Return whether any hold was lost."""
        return any(hold.lost for hold in self._holds.copy() if not hold.is_inherited)

    def begin_block(
        self, owner: Owner, block: object = None, watch: "weakref.ref[Any] | None" = None
    ) -> None:
        """Record that `owner` acquired the lock by a ``with`` statement."""
        if hold := self.of(owner):  # if all threads share it, it may be released already
            hold.by_with, hold.block, hold.block_watch = True, block, watch

    def watched_by(self, watch: "weakref.ref[Any]") -> Hold | None:
        """Return the hold of the block that `watch` watches, unless it was released."""
        return next((hold for hold in self._holds.copy() if hold.block_watch is watch), None)

    def release_early(self, owner: Owner, hold: Hold) -> None:
        """Record that `owner` releases a hold of a ``with`` block before that block ends.

        The end of that block then has nothing to release.
        """
        if hold.by_with:
            early = self._released_early = self._released_early or WeakKeyDictionary()
            early[owner] = early.get(owner, 0) + 1

    def of_block(self, owner: Owner, block: object = None) -> Hold | None:
        """Return the hold that the end of a ``with`` block of `owner` releases.

        This is the block's own hold if it is known, because blocks of one object need not be
        nested: a generator may leave its block later than its caller.
        """
        for own in self._holds.copy():
            if block and own.block is block and not own.is_inherited:
                last = self.of(own.owner)
                acquired_again = own.lost and last and not last.by_with
                return last if acquired_again else own
        early = self._released_early
        if early and early.get(owner) and owner not in self._owners():
            early[owner] -= 1
            return None
        return self.visible_to(owner)

    def _of_only_owner(self) -> Hold | None:
        owners = self._owners()
        return self.of(*owners) if len(owners) == 1 else None

    def _owners(self) -> set[Owner]:
        return {hold.owner for hold in self._holds.copy()}

    def _remove_of_dead_owners(self) -> None:
        for owner in self._owners():
            if not is_alive(ref(owner)):
                holds = [hold for hold in self._holds.copy() if hold.owner is owner]
                if all(hold.lost for hold in holds):
                    for hold in holds:
                        self.remove(hold)
