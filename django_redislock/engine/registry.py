"""The registry: what each thread, asyncio task and greenlet of this process holds.

A `Hold` is one acquisition of a lock object, with one lease. The registry has all holds of the
process. Everything else that concerns what is held is derived from it: whether a caller enters a
lock again, what a lock object holds, and what the renewers renew.

Several threads use the registry, and a signal handler or the garbage collector may interrupt its
changes. It does without a `threading.Lock`, because these could deadlock on it. Each change of a
list or a dict is one step.
"""

import asyncio
import os
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from weakref import ref

from ..backends import Server
from ..identity import Owner, caller, is_alive
from ..tokens import token_of
from .lease import Lease, LeaseState


@dataclass(eq=False)
class AnyHold:
    """One acquisition of a lock object by an owner.

    A `Hold` has one lease. The hold of a composite lock consists of the holds of its parts.
    """

    owner: Owner

    server: Server
    """The server as the lock object reaches it. A lease that was re-entered can have another
    client."""

    lock: "ref[Any]"

    is_first: bool = field(default=True, kw_only=True)
    """Whether it acquired a lease. If not, it re-entered the lease of an earlier hold."""

    awaits_commit: bool = field(default=False, init=False)
    """Whether the caller has released it, and it lasts until the end of a transaction."""

    signals: Any = field(default=None, init=False)
    """The context of the signals about this hold, if anybody receives them."""

    # The renewers of several servers may find the loss.
    _loss_reported: Any = field(default_factory=threading.Lock, init=False)
    _aborted_task: "asyncio.Task[object] | None" = field(default=None, init=False)

    _cancellations: int = field(default=0, init=False)
    """The cancellations of the asyncio task that were pending when it acquired the lock."""

    @property
    def parts(self) -> "Sequence[Hold]":
        """The holds with a lease, of which it consists."""
        raise NotImplementedError

    @property
    def token(self) -> str:
        """The lock token, as the caller knows it."""
        raise NotImplementedError

    @property
    def fence_token(self) -> int:
        raise NotImplementedError

    @property
    def lost(self) -> bool:
        raise NotImplementedError

    @property
    def deadline(self) -> float:
        """When the hold is lost unless it is renewed, on the holder's clock."""
        raise NotImplementedError

    @property
    def is_inherited(self) -> bool:
        """Whether a forked child has this copy."""
        raise NotImplementedError

    def begin(self) -> None:
        """Begin to count `max_hold`, and the cancellations of the owner."""
        if isinstance(self.owner, asyncio.Task):
            self._cancellations = self.owner.cancelling()

    def reports_loss(self) -> bool:
        """Return whether the hold is lost and nobody was notified yet. True only once."""
        return self.lost and self._loss_reported.acquire(blocking=False)

    def abort(self) -> None:
        """Cancel the asyncio task that holds the lock. A thread must check `lost` itself.

        A task that acquired the lock by a sync method is not cancelled: its loss is found in
        another thread.
        """
        owner = self.owner
        if not (isinstance(owner, asyncio.Task) and caller()[1]):
            return
        if owner.get_loop() is asyncio.get_running_loop():
            self._aborted_task = owner
            self._cancellations = min(self._cancellations, owner.cancelling())
            owner.cancel()

    def takes_back_abort(self, *errors: BaseException | None) -> bool:
        """Withdraw the cancellation by `abort()`, as `asyncio.timeout` does.

        Returns:
            Whether one of the errors is that cancellation, and nobody else has asked for one since
            the acquisition.
        """
        task, self._aborted_task = self._aborted_task, None
        if task is None:
            return False
        has_others = task.uncancel() > self._cancellations
        return not has_others and any(isinstance(each, asyncio.CancelledError) for each in errors)


@dataclass(eq=False)
class Hold(AnyHold):
    """A hold of an ordinary lock."""

    lease: Lease

    is_part: bool = field(default=False, kw_only=True)
    """Whether a composite lock acquired it."""

    part_of: "ref[AnyHold] | None" = field(default=None, init=False)
    """The hold of the composite lock, once that has all the parts that it needs."""

    @property
    def whole(self) -> AnyHold:
        """The hold that the caller knows: this one, or the composite hold that it is a part of."""
        composite = self.part_of() if self.part_of else None
        return composite or self

    @property
    def is_incomplete(self) -> bool:
        """Whether it is a part of a composite lock that is not held, or not held any more."""
        return self.is_part and (self.part_of is None or self.part_of() is None)

    @property
    def parts(self) -> "Sequence[Hold]":
        return (self,)

    @property
    def token(self) -> str:
        return token_of(self.lease.token)

    @property
    def fence_token(self) -> int:
        return self.lease.fence_token

    @property
    def lost(self) -> bool:
        return self.lease.lost

    @property
    def deadline(self) -> float:
        return self.lease.deadline

    @property
    def is_inherited(self) -> bool:
        return self.lease.is_inherited

    def begin(self) -> None:
        super().begin()
        if self.is_first:
            self.lease.begin_max_hold()


# The registry

_Key: TypeAlias = tuple[str, Owner]
"""The key of a lock in Redis, and who holds it. It does not name the client, because several
clients can reach the same server."""

_holds: dict[_Key, dict[Hold, None]] = {}


def add(hold: Hold) -> None:
    """Record a hold until it is removed, or until its lock object is garbage-collected."""
    key = hold.lease.keys.lock, hold.owner
    while True:
        holds = _holds.setdefault(key, {})
        holds[hold] = None
        if _holds.get(key) is holds:  # else it was empty a moment ago, and was removed
            return


def remove(hold: Hold) -> bool:
    """Forget a hold, and return whether no other hold uses its lease: then it must be released."""
    key = hold.lease.keys.lock, hold.owner
    holds = _holds.get(key, {})
    holds.pop(hold, None)
    if not holds:
        _holds.pop(key, None)
    others = list(holds)
    if others and _holds.get(key) is not holds:  # they were added at this moment
        for each in others:
            add(each)
    return not any(each.lease is hold.lease for each in others)


def all_holds() -> list[Hold]:
    """Return the holds of all threads, tasks and greenlets of this process."""
    # Lists, because other threads change the registry. `list()` copies a dictionary in one step.
    found = [hold for holds in list(_holds.values()) for hold in list(holds)]
    process = os.getpid()  # once, because there may be thousands of holds
    return [hold for hold in found if hold.lease.process == process]


def _of(lock_key: str, owner: Owner) -> list[Hold]:
    return list(_holds.get((lock_key, owner), ()))


def holds_of(lease: Lease) -> list[Hold]:
    """Return the holds that use a lease."""
    owner = lease.owner()
    if owner is None:
        return []
    return [hold for hold in _of(lease.keys.lock, owner) if hold.lease is lease]


def leases_of(owner: Owner, server: Server, name: str) -> list[Lease]:
    """Return the leases by which `owner` holds a lock, including lost ones."""
    return leases_by_client(owner, server, name)[0]


def leases_by_client(owner: Owner, server: Server, name: str) -> tuple[list[Lease], list[Lease]]:
    """Return the leases by which `owner` holds a lock, and its leases with the same keys through
    other clients, whose server can be the same one. Only the server knows.
    """
    own: dict[Lease, None] = {}
    elsewhere: dict[Lease, None] = {}
    for hold in _of(server.keys.of(name).lock, owner):
        lease = hold.lease
        if lease.state is not LeaseState.HELD or lease.is_inherited:
            continue
        if server in (lease.server, hold.server):  # entered again through this client
            own[lease] = None
            elsewhere.pop(lease, None)
        elif lease not in own:
            elsewhere[lease] = None
    return list(own), list(elsewhere)


def should_renew(lease: Lease, is_alive: Callable[["ref[Owner]"], bool] = is_alive) -> bool:
    """Return whether a renewal is of use.

    A lease that nobody can release expires, and so do the remaining leases of a lost hold.
    """
    if not (lease.is_renewed and is_alive(lease.owner)):
        return False
    return any(not hold.whole.lost for hold in holds_of(lease))


# The holds of one lock object


class HoldsOfLock(list[AnyHold]):
    """The holds of one lock object, in the order of their acquisition."""

    def remove(self, hold: AnyHold) -> None:
        """Remove a hold, if it is there."""
        with suppress(ValueError):
            super().remove(hold)

    def of(self, owner: Owner) -> AnyHold | None:
        """Return the last hold of `owner`."""
        for hold in self[::-1]:
            if hold.owner is owner:
                return None if hold.is_inherited else hold
        return None

    def visible_to(self, owner: Owner) -> AnyHold | None:
        """Return the last hold of `owner`, or of the only other owner, because an `on_lost`
        function runs in the thread or task of the renewal."""
        return self.of(owner) or self._of_only_owner()

    def at_end_of_block(self, owner: Owner) -> AnyHold | None:
        """Return the hold that the end of a ``with`` block releases: the last one of `owner`.

        If it has none, it is the hold of the only other owner, if that owner has ended. A
        generator that contains the block can be closed in another thread or task.
        """
        own = self.of(owner)
        if own:
            return own
        other = self._of_only_owner()
        return other if other and not is_alive(ref(other.owner)) else None

    def any_lost(self) -> bool:
        """Return whether any hold was lost."""
        return any(hold.lost for hold in self.copy() if not hold.is_inherited)

    def _of_only_owner(self) -> AnyHold | None:
        owners = self._owners()
        return self.of(*owners) if len(owners) == 1 else None

    def _owners(self) -> set[Owner]:
        return {hold.owner for hold in self.copy()}

    def remove_of_dead_owners(self) -> None:
        """Remove the lost holds of threads and tasks that have ended."""
        for hold in self.copy():
            if hold.lost and not is_alive(ref(hold.owner)):
                self.remove(hold)
                for part in hold.parts:
                    remove(part)


# Lock objects that are garbage-collected while they hold a lock


def reference_to(lock: object) -> "ref[Any]":
    """Return a reference to a lock object. If the object is garbage-collected, its holds are
    removed, because nobody can release them any more. Their leases then expire."""
    return ref(lock, _lock_dropped)


def _lock_dropped(lock: "ref[Any]", is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    if is_finalizing():  # then parts of this module may be gone
        return
    holds = {hold.whole: None for hold in all_holds() if hold.whole.lock is lock}
    for hold in holds:
        held = [part for part in hold.parts if not part.lost]
        if hold.is_first and not hold.lost and not all(part.is_incomplete for part in held):
            names = ", ".join(sorted({repr(part.lease.keys.name) for part in held}))
            warnings.warn(
                f"Lock {names} was not released before its lock object was garbage-collected. "
                "Keep a reference to the lock object and release it.",
                ResourceWarning,
                stacklevel=2,
            )
        for part in hold.parts:
            remove(part)
