"""Leases, holds, and the registry of what each thread, task or greenlet holds.

A `Lease` is what the holder knows about one lock on one server, judged by the holder's clock. A
`Hold` is one acquisition of a lock object: one lease, or several. A `HoldTable` has the holds of
one lock object. The registry has all leases of the process, for re-entrancy across lock objects.

Several threads use all of this, and a signal handler may interrupt it. It does without a
`threading.Lock`, because the handler could deadlock on it. The leases of different owners have
different keys, and each change of a list or a dict is one step.
"""

import asyncio
import math
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, TypeAlias
from weakref import ref

from .. import clock
from ..backends import Server
from ..identity import Owner, caller, is_alive
from ..keys import LockKeys
from ..tokens import token_of
from .timing import CONFIRM_DELAY_SECONDS

UNANSWERED_REQUEST_SECONDS = 60.0
"""A server may still execute a request without a reply for this time."""


class State(Enum):
    """The life of a lease."""

    PENDING = "pending"
    """The acquisition is under way."""

    HELD = "held"
    """The lock was acquired. Whether it was lost since then is in `Lease.lost`."""

    ENDED = "ended"
    """The holder released it, or gave up the acquisition."""


@dataclass(slots=True)
class SetRequest:
    """A request that sets a lease, by `extend(replace_ttl=True)`, and may make it shorter."""

    seconds: float

    until: float = math.inf
    """The server may execute it after other requests that were sent before this time."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class Lease:
    """One lock on one server, from its acquisition to its release.

    `deadline` counts from before the request that set the lease was sent, so it is earlier than
    the expiry in Redis. After it the lease is lost.
    """

    server: Server
    keys: LockKeys

    token: str = field(repr=False)
    """The stored token."""

    seconds: float
    """The length of the lease. Each renewal sets it again."""

    owner: "weakref.ref[Owner]"
    kind: str
    weight: int
    is_renewed: bool

    at_least_for: float = 0
    """Seconds from the acquisition for which the lock stays unavailable."""

    max_hold: float = math.inf
    """Seconds from the beginning of the hold after which the lease counts as lost."""

    min_replicas: int = 0

    drift: tuple[float, float] = (0.0, 0.0)
    """The part of a lease to ignore because of clock drift: a fraction, and seconds."""

    reply_timeout: float | None = None
    """Seconds to wait for a reply; None means as long as the client allows."""

    renewer: Any = field(default=None, repr=False)
    """The renewer that it belongs to. The lease itself does not use it."""

    on_lost: "Callable[[Lease, bool], None] | None" = None
    """Called with the lease, and with whether its holder found the loss by itself."""

    state: State = field(default=State.PENDING, init=False)
    fence_token: int = field(default=0, init=False)
    deadline: float = field(default=0.0, init=False)

    max_deadline: float = field(default=math.inf, init=False)
    """When `max_hold` has passed, on the holder's clock."""

    due: float = field(default=0.0, init=False)
    """When to renew it."""

    due_tolerance: float = field(default=0.0, init=False)
    """It can be renewed this many seconds before it is due, together with other leases."""

    needs_renewal: bool = field(default=False, init=False)
    """Whether it expires before its hold must end."""

    is_confirmed: bool = field(default=True, init=False)
    """Whether the lease runs in full. If not, it is a grant that a renewal must confirm."""

    pending_commits: int = field(default=0, init=False)
    """The number of holds that are released after a database transaction."""

    holds: "tuple[weakref.ref[Any], ...]" = field(default=(), init=False)
    """The holds that use the lease, which `Hold` adds."""

    _expires: float = field(default=0.0, init=False)
    """When it expires in Redis, without what `drift` takes off, and without `max_hold`."""

    _is_lost: bool = field(default=False, init=False)
    _began: float = field(default=0.0, init=False)
    _pid: int = field(default_factory=os.getpid, init=False)

    _set_requests: tuple[SetRequest, ...] = field(default=(), init=False)

    def begin(self, fence_token: int, deadline: float, *, is_confirmed: bool = True) -> None:
        """Record that the lock was acquired until `deadline`."""
        self.fence_token = fence_token
        self._began = clock.now()
        self.is_confirmed = is_confirmed
        if self.state is State.PENDING:  # not if an interrupt ended it in another thread
            self.state = State.HELD
        self.set_deadline(deadline)
        if not is_confirmed:
            self.due, self.due_tolerance = min(self.due, self._began + CONFIRM_DELAY_SECONDS), 0.0

    def set_deadline(self, deadline: float) -> None:
        """Record when the lease expires in Redis.

        Its renewal is due after a third of the time, or of `seconds` if that is less. So an
        extension or a long `at_least_for` does not delay the notice of a loss.
        """
        self._expires = deadline
        now, (drift, seconds) = clock.now(), self.drift
        deadline -= (deadline - now) * drift + seconds
        self.deadline = min(deadline, self.max_deadline)
        self.needs_renewal = self.is_renewed and deadline < self.max_deadline
        span = min(self.deadline - now, self.seconds)
        self.due = now + span / 3 if self.needs_renewal else self.deadline
        self.due_tolerance = span / 10

    def apply_renewal(self, sent_at: float, ttl: float) -> None:
        """Apply the reply to a renewal.

        The new lease counts for no more than the holder expects, because the server's clock may
        have been set back, and may be corrected later.
        """
        expected = max(self._expires - sent_at, self.apply_at_least_for(self.seconds))
        self.is_confirmed = True
        self.set_deadline(sent_at + self._guaranteed(min(ttl, expected), sent_at))

    def apply_extension(self, sent_at: float, ttl: float) -> None:
        """Apply the reply to an extension: the lease lasts `ttl` from `sent_at` at least.

        The reply may be late. Renewals that were answered earlier may have extended it further.
        """
        self.is_confirmed = True
        deadline = sent_at + self._guaranteed(ttl, sent_at)
        if deadline > self.deadline:
            self.set_deadline(deadline)

    def remaining(self, now: float) -> float:
        """Return the remaining seconds: of a grant those that it has once it is confirmed."""
        remaining = self.deadline - now
        return remaining if self.is_confirmed else max(remaining, self.seconds)

    def begin_set(self, seconds: float, sent_at: float) -> SetRequest:
        """Record that the holder asks Redis to set the lease, until `end_set()`.

        Redis may do so at any time from `sent_at` on, so a shorter lease counts at once.
        """
        request = SetRequest(seconds)
        recent = sent_at - UNANSWERED_REQUEST_SECONDS  # renewals may be under way, too
        others = [each for each in self._set_requests if each.until > recent]
        self._set_requests = (*others, request)
        if sent_at + seconds < self.deadline:
            self.set_deadline(sent_at + seconds)
        return request

    def end_set(self, request: SetRequest, *, has_reply: bool) -> None:
        """Record that Redis has executed a request, or that it may do so later."""
        request.until = clock.now() + (0 if has_reply else UNANSWERED_REQUEST_SECONDS)

    def _guaranteed(self, ttl: float, sent_at: float) -> float:
        """Return how long the lease lasts, whenever Redis executes the requests to set it.

        If it executed them before it replied `ttl`, that includes them. If not, it does so after
        `sent_at`, and the lease then lasts the seconds of the request.
        """
        return min([ttl, *(each.seconds for each in self._set_requests if sent_at < each.until)])

    def apply_at_least_for(self, seconds: float) -> float:
        """Return `seconds`, or what remains of `at_least_for` if that is more."""
        if not self.at_least_for:
            return seconds
        return max(seconds, self._began + self.at_least_for - clock.now())

    def postpone(self, seconds: float) -> None:
        """Renew the lease after `seconds`, or check it when it ends."""
        self.due = min(clock.now() + seconds, self.deadline)
        self.due_tolerance = 0.0

    @property
    def lost(self) -> bool:
        """Whether the lease was lost before its holder released it."""
        if self.state is State.HELD and clock.now() >= self.deadline:
            self._is_lost = True
        return self._is_lost

    def mark_lost(self, *, found_by_holder: bool = False) -> None:
        """Record the loss and notify the holder. A holder that finds it itself gets an error."""
        self._is_lost = True
        if self.on_lost:
            self.on_lost(self, found_by_holder)

    def end(self) -> None:
        """Record that the holder gives the lease up. Whether it is lost does not change again."""
        self._is_lost = self.lost
        self.state = State.ENDED

    @property
    def is_inherited(self) -> bool:
        """Whether a forked child has this copy: then the lease belongs to the parent process."""
        return self._pid != os.getpid()


# The registry: which leases each thread, task or greenlet holds


_Key: TypeAlias = tuple[str, Owner]
"""The key of a lock in Redis, and who holds it. It does not name the client, because several
clients can reach the same server."""

_leases: dict[_Key, list[ref[Lease]]] = {}


def register(lease: Lease, owner: Owner) -> None:
    """Record that `owner` holds the lease, until the lease ends or is garbage-collected."""
    key = lease.keys.lock, owner
    reference = ref(lease, partial(_discard, key))
    others = _leases.get(key)
    _leases[key] = [*others, reference] if others else [reference]


def unregister(lease: Lease) -> None:
    """Forget a lease that ended."""
    owner = lease.owner()
    if owner is not None:
        _discard((lease.keys.lock, owner), ref(lease))


def _discard(key: _Key, ended: ref[Lease]) -> None:
    remaining = [each for each in _leases.get(key, ()) if each != ended and each() is not None]
    if remaining:
        _leases[key] = remaining
    else:
        _leases.pop(key, None)


def leases_of(owner: Owner, server: Server, name: str) -> list[Lease]:
    """Return the leases by which `owner` holds a lock, including lost ones."""
    return leases_by_client(owner, server, name)[0]


def leases_by_client(owner: Owner, server: Server, name: str) -> tuple[list[Lease], list[Lease]]:
    """Return the leases by which `owner` holds a lock, and its leases with the same keys through
    other clients, whose server can be the same one. Only the server knows.
    """
    references = _leases.get((server.keys.of(name).lock, owner))
    if references is None:
        return [], []
    found = [each() for each in references]
    held = [each for each in found if each and each.state is State.HELD and not each.is_inherited]
    own = [lease for lease in held if _is_used_on(server, lease)]
    return own, [lease for lease in held if lease not in own]


def _is_used_on(server: Server, lease: Lease) -> bool:
    return lease.server == server or any(hold.server == server for hold in holds_of(lease))


def all_leases() -> list[Lease]:
    """Return the leases of all threads, tasks and greenlets of this process."""
    leases = [each() for references in list(_leases.values()) for each in references]
    return [lease for lease in leases if lease and not lease.is_inherited]


@dataclass(eq=False)
class Hold:
    """One acquisition of a lock object by an owner."""

    owner: Owner

    server: Server
    """The server as the lock object reaches it. A lease that was re-entered can have another
    client."""

    leases: Sequence[Lease]

    needed: int
    """How many of the leases must last. If fewer do, the hold is lost."""

    lock: "ref[Any]"

    is_first: bool = False
    """Whether it acquired a lease. If not, it re-entered the leases of earlier holds."""

    block: object = None
    """Identifies the ``with`` statement that acquired it."""

    block_watch: "ref[Any] | None" = None
    """Its callback runs if that block ends before the hold is removed from its table."""

    signals: Any = None
    """The context of the signals about this hold, if anybody receives them."""

    drop_watch: "ref[Any] | None" = None
    """Its callback warns if the lock object is garbage-collected before the release."""

    # The renewers of several servers may find the loss.
    _loss_reported: Any = field(default_factory=threading.Lock, init=False)
    _aborted_task: "asyncio.Task[object] | None" = field(default=None, init=False)
    _cancellations: int = field(default=0, init=False)
    """The cancellations of the asyncio task that were pending when it acquired the lock."""

    def enter(self) -> None:
        """Use the leases. Store the hold before, so that an interrupt in here can abandon it."""
        for lease in self.leases:
            if not lease.holds:
                self.is_first = True
                # It counts from here, because the caller has all leases that it needs.
                lease.max_deadline = clock.now() + lease.max_hold
            lease.holds = (*lease.holds, ref(self))
        if isinstance(self.owner, asyncio.Task):
            self._cancellations = self.owner.cancelling()
        if self.is_first:
            # Not __del__: it would also run after a release, and could swallow an interrupt.
            warn = partial(_warn_dropped, self.leases, self.needed)
            self.drop_watch = ref(self.lock(), warn)

    @property
    def token(self) -> str:
        """The lock token, as the caller knows it."""
        return token_of(self.leases[0].token)

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
            others = tuple(each for each in lease.holds if each() not in (None, self))
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


def holds_of(lease: Lease) -> list[Hold]:
    """Return the holds that use a lease."""
    return [hold for each in lease.holds if (hold := each())]


def should_renew(lease: Lease, is_alive: Callable[["ref[Owner]"], bool] = is_alive) -> bool:
    """Return whether a renewal is of use.

    A lease that nobody can release expires, and so do the remaining leases of a lost hold.
    """
    if not (lease.is_renewed and is_alive(lease.owner)):
        return False
    holds = holds_of(lease)
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


class HoldTable(list[Hold]):
    """The holds of one lock object, in the order of their acquisition."""

    def remove(self, hold: Hold) -> None:
        """Remove a hold, if it is there."""
        hold.drop_watch = hold.block_watch = None
        with suppress(ValueError):
            super().remove(hold)

    def of(self, owner: Owner) -> Hold | None:
        """Return the last hold of `owner`."""
        for hold in self[::-1]:
            if hold.owner is owner:
                return None if hold.is_inherited else hold
        return None

    def visible_to(self, owner: Owner) -> Hold | None:
        """Return the owner's hold, or the only other owner's: an `on_lost` function runs in the
        thread or task of the renewal."""
        owners = self._owners()
        return self.of(owner) or (self.of(*owners) if len(owners) == 1 else None)

    def any_lost(self) -> bool:
        """Return whether any hold was lost."""
        return any(hold.lost for hold in self.copy() if not hold.is_inherited)

    def of_block(self, owner: Owner, block: object) -> Hold | None:
        """Return the hold that the end of a ``with`` block releases.

        - The hold of the block. Another thread may end the block, if a generator contains it.
        - If that hold was lost or released inside the block: the last hold of its owner, if it
          was acquired without a block.
        - If the block is unknown (None), as with `ExitStack`: the owner's last hold, or the only
          other owner's, because another thread or task may close the stack.
        """
        if block is None:
            return self.visible_to(owner)
        own = None
        for hold in self.copy():
            if hold.block is block and not hold.is_inherited:
                own = hold
        last = self.of(own.owner if own else owner)
        is_by_hand = last is not None and last.block is None
        return last if is_by_hand and (own is None or own.lost) else own

    def _owners(self) -> set[Owner]:
        return {hold.owner for hold in self.copy()}

    def remove_of_dead_owners(self) -> None:
        """Remove the lost holds of threads and tasks that have ended."""
        for owner in self._owners():
            if not is_alive(ref(owner)):
                holds = [hold for hold in self.copy() if hold.owner is owner]
                if all(hold.lost for hold in holds):
                    for hold in holds:
                        self.remove(hold)
