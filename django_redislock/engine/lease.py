"""One token's holding of one lock on one server, as its holder knows it."""

import math
import os
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from .. import clock
from ..backends import Server
from ..identity import Owner, is_alive
from ..keys import LockKeys

if TYPE_CHECKING:
    from .holds import Hold
    from .renewer import Book


SOON = 0.5
"""Seconds until a turn is confirmed: long before it runs out, but not for those who hold it for
less."""


UNANSWERED = 60.0
"""Seconds for which a server may still read a request that got no answer."""


class Lease:
    """One token's holding of one lock on one server, judged on the holder's own clock.

    `deadline` counts from before the request that got or renewed the lease was
    sent, so it comes before Redis's. Past it the lease is lost, for good.
    """

    place: "_Place | None" = None
    deferred = 0
    fence_token = 0
    deadline = due = early = 0.0
    over = False
    confirmed = True
    _lost = _is_part = False
    _began = _set_at = 0.0
    _set_seconds = _unsure = math.inf
    _unsure_until = -math.inf

    def __init__(
        self,
        book: "Book",
        keys: LockKeys,
        token: str,
        seconds: float,
        *,
        owner: Owner,
        kind: str,
        weight: int,
        renewed: bool,
        at_least_for: float = 0,
        min_replicas: int = 0,
        drift: tuple[float, float] = (0.0, 0.0),
        patience: float | None = None,
    ) -> None:
        self.book = book
        self.server = book.server
        self.keys = keys
        self.token = token
        self.seconds = seconds
        self.kind = kind
        self.weight = weight
        self.at_least_for = at_least_for
        self.min_replicas = min_replicas
        self.drift = drift
        self.patience = patience
        self.owner = weakref.ref(owner)
        hash(self.owner)  # now, as it has none when the owner is gone
        self.is_renewed = renewed
        self._pid = os.getpid()
        self._entries: list[weakref.ref[Hold]] = []

    def begin(self, fence_token: int, deadline: float, confirmed: bool) -> None:
        """The lock was acquired, and is this lease's until `deadline`."""
        self.fence_token = fence_token
        self._began = clock.now()
        self.confirmed = confirmed
        self.keep(deadline)
        if not confirmed:
            self.due, self.early = min(self.due, self._began + SOON), 0.0
            self.book.turn_taken()
        self.book.add(self)

    def keep(self, deadline: float) -> None:
        """The lease now runs until `deadline`: look at it after a third of that, or a little
        earlier together with others."""
        now, (part, least) = clock.now(), self.drift
        self.deadline = deadline - (deadline - now) * part - least
        left = self.deadline - now
        self.due = self.deadline - left * 2 / 3 if self.is_renewed else self.deadline
        self.early = left / 10

    def renewed(self, sent: float, left: float) -> None:
        """What a renewal was answered: so much was left, which counts for no more than was known
        or asked for, as the server's clock may have been set back, and may be set right again."""
        most = max(self.deadline - sent, self.at_least(self.seconds))
        seconds = self.surely(min(left, most), sent)
        if sent < self._set_at:
            # The holder set the lease while this renewal was under way. If Redis executed the
            # set first, the answer includes it. If it executes the set after the renewal, it does
            # so after `sent`, and the lease lasts the seconds of the set from then on. So the
            # lease lasts that long from `sent` in any order, however late the set arrives.
            seconds = min(seconds, self._set_seconds)
        self.confirmed = True
        self.keep(sent + seconds)

    def extended(self, deadline: float) -> None:
        """Redis answered that the lease runs until `deadline` at least. The answer may come late:
        then renewals that were answered before it have extended the lease further."""
        self.confirmed = True
        if deadline > self.deadline:
            self.keep(deadline)
        self.book.add(self)

    def left(self, now: float) -> float:
        """The seconds that it has left, of a turn those that it has once that is confirmed."""
        left = self.deadline - now
        return left if self.confirmed else max(left, self.seconds)

    def begin_to_set(self, seconds: float, sent: float) -> None:
        """The holder asks Redis to let the lease end in so many seconds. Redis may do so at any
        time from `sent` on, so a shorter lease counts at once."""
        self._set_at, self._set_seconds = math.inf, seconds
        if sent + seconds < self.deadline:
            self.keep(sent + seconds)
            self.book.add(self)

    def end_to_set(self) -> None:
        """What is sent from here on comes later."""
        self._set_at = clock.now()

    def may_yet_be_set(self, seconds: float) -> None:
        """Its holder asked for that, and got no answer: the server may read it later, also after a
        renewal, and have the lease end so many seconds after that."""
        now = clock.now()
        self._unsure = min(seconds, self._unsure if now < self._unsure_until else math.inf)
        self._unsure_until = now + UNANSWERED

    def surely(self, seconds: float, sent: float) -> float:
        """What remains of so many seconds from `sent`, whatever else the server may yet read."""
        return min(seconds, self._unsure) if sent < self._unsure_until else seconds

    def at_least(self, seconds: float) -> float:
        """So many seconds, or as many as are left of its least time."""
        if not self.at_least_for:
            return seconds
        return max(seconds, self._began + self.at_least_for - clock.now())

    def put_off(self, seconds: float) -> None:
        """Look at it again after so long, and not before, or when it ends."""
        self.due = min(clock.now() + seconds, self.deadline)
        self.early = 0.0

    def end(self) -> None:
        """The holder lets go: nothing renews it any more or takes its going for a loss."""
        self.book.remove(self)
        self._lost = self.lost
        self.over = True
        _forget(self)

    def lose(self, *, found_by_holder: bool = False) -> None:
        """It is lost; tell the holds on it. A holder that finds it out itself gets an error."""
        self._lost = True
        newly = [hold for hold in self._holds() if hold.is_newly_lost()]
        by_lock = {id(hold.lock): hold for hold in reversed(newly)}
        for hold in by_lock.values():  # who entered it twice is told once
            hold.tell_lost(self, found_by_holder)

    def enter(self, hold: "Hold") -> None:
        self._entries.append(weakref.ref(hold))
        self._is_part = self._is_part or len(hold.leases) > 1

    def leave(self, hold: "Hold") -> bool:
        """Whether nobody else has entered it, so that it is to be released."""
        others = [entry for entry in self._entries if entry() not in (None, hold)]
        self._entries = others or self._entries
        return not others

    @property
    def entered(self) -> bool:
        return bool(self._entries)

    @property
    def lost(self) -> bool:
        if not self.over and clock.now() >= self.deadline:
            self._lost = True
        return self._lost

    def wants_renewal(self, is_alive: "Callable[[weakref.ref[Owner]], bool]" = is_alive) -> bool:
        """What nobody can release is left to run out, and so is what is left of a lost hold."""
        return self.is_renewed and is_alive(self.owner) and not (self._is_part and self._is_rest())

    def _is_rest(self) -> bool:
        # A hold on it alone is not lost before it is.
        holds = self._holds()
        return bool(holds) and all(len(hold.leases) > 1 and hold.lost for hold in holds)

    def _holds(self) -> "list[Hold]":
        return [hold for entry in self._entries if (hold := entry())]

    @property
    def inherited(self) -> bool:
        """Whether this is a forked child's copy: the lease is its parent's."""
        return self._pid != os.getpid()


_Place: TypeAlias = tuple[Server, str, Owner]
_held: dict[_Place, list[weakref.ref[Lease]]] = {}


def remember(lease: Lease, owner: Owner) -> None:
    lease.place = place = lease.server, lease.keys.name, owner
    _held[place] = [*_held.get(place, ()), weakref.ref(lease, partial(_drop, place))]


def _forget(lease: Lease) -> None:
    if lease.place:
        _drop(lease.place, weakref.ref(lease))


def _drop(place: _Place, gone: weakref.ref[Lease]) -> None:
    left = [each for each in _held.get(place, ()) if each != gone and each() is not None]
    if left:
        _held[place] = left
    else:
        _held.pop(place, None)


def held_by(owner: Owner, server: Server, name: str) -> list[Lease]:
    """The leases by which that thread, task or greenlet holds that lock, lost or not."""
    leases = [each() for each in _held.get((server, name, owner), ())]
    return [lease for lease in leases if lease and not lease.inherited]


def held_here() -> list[Lease]:
    """The leases of all threads, tasks and greenlets of this process, lost or not."""
    leases = [each() for those in list(_held.values()) for each in those]
    return [lease for lease in leases if lease and not lease.inherited]
