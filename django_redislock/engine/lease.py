"""A lease: what the holder knows about one lock on one server, judged by the holder's clock."""

import math
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from .. import clock
from ..backends import Server
from ..identity import Owner
from ..keys import LockKeys

CONFIRM_DELAY_SECONDS = 0.5
"""A renewal confirms a grant after this time. A lock that is released earlier needs no renewal."""

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


@dataclass(eq=False, slots=True, weakref_slot=True)
class Lease:
    """One lock on one server, from its acquisition to its release.

    `deadline` counts from before the request that set the lease was sent, so it is earlier than
    the expiry in Redis. After it the lease is lost.
    """

    server: Server
    keys: LockKeys
    token: str = field(repr=False)

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

    state: State = State.PENDING
    fence_token: int = 0
    deadline: float = 0.0

    max_deadline: float = math.inf
    """When `max_hold` has passed, on the holder's clock."""

    due: float = 0.0
    """When to renew it."""

    due_tolerance: float = 0.0
    """It can be renewed this many seconds before it is due, together with other leases."""

    needs_renewal: bool = False
    """Whether it expires before its hold must end."""

    is_confirmed: bool = True
    """Whether the lease runs in full. If not, it is a grant that a renewal must confirm."""

    pending_commits: int = 0
    """The number of holds that are released after a database transaction."""

    holds: "list[weakref.ref[Any]]" = field(default_factory=list)
    """The holds that use the lease; see `registry`."""

    is_part: bool = False
    """Whether a hold on it has other leases, too."""

    _is_lost: bool = False
    _began: float = 0.0
    _pid: int = field(default_factory=os.getpid)

    # While the holder sets the lease by `extend(replace_ttl=True)`: when and to how many seconds.
    _replaced_at: float = 0.0
    _replace_seconds: float = math.inf

    # The shortest lease that an unanswered request may still set, and until when it may.
    _unanswered_seconds: float = math.inf
    _unanswered_until: float = -math.inf

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

    def begin_hold(self) -> None:
        """Count `max_hold` from now, because the caller has all leases that it needs."""
        self.max_deadline = clock.now() + self.max_hold

    def set_deadline(self, deadline: float) -> None:
        """Record when the lease expires in Redis. Its renewal is due after a third of the time."""
        now, (drift, seconds) = clock.now(), self.drift
        deadline -= (deadline - now) * drift + seconds
        self.deadline = min(deadline, self.max_deadline)
        self.needs_renewal = self.is_renewed and deadline < self.max_deadline
        remaining = self.deadline - now
        self.due = self.deadline - remaining * 2 / 3 if self.needs_renewal else self.deadline
        self.due_tolerance = remaining / 10

    def apply_renewal(self, sent_at: float, ttl: float) -> None:
        """Apply the reply to a renewal.

        The new lease counts for no more than the holder expects, because the server's clock may
        have been set back, and may be corrected later.
        """
        expected = max(self.deadline - sent_at, self.apply_at_least_for(self.seconds))
        ttl = self.guaranteed_ttl(min(ttl, expected), sent_at)
        if sent_at < self._replaced_at:
            # The holder set the lease while this renewal was under way. If Redis executed the
            # set first, the reply includes it. If Redis executes the set after the renewal, it
            # does so after `sent_at`, and the lease lasts the seconds of the set from then on.
            # In any order the lease lasts that long from `sent_at`.
            ttl = min(ttl, self._replace_seconds)
        self.is_confirmed = True
        self.set_deadline(sent_at + ttl)

    def apply_extension(self, deadline: float) -> None:
        """Apply the reply to an extension: the lease lasts until `deadline` at least.

        The reply may be late. Renewals that were answered earlier may have extended it further.
        """
        self.is_confirmed = True
        if deadline > self.deadline:
            self.set_deadline(deadline)

    def remaining(self, now: float) -> float:
        """Return the remaining seconds: of a grant those that it has once it is confirmed."""
        remaining = self.deadline - now
        return remaining if self.is_confirmed else max(remaining, self.seconds)

    def begin_replace(self, seconds: float, sent_at: float) -> None:
        """Record that the holder asks Redis to set the lease.

        Redis may do so at any time from `sent_at` on, so a shorter lease counts at once.
        """
        self._replaced_at, self._replace_seconds = math.inf, seconds
        if sent_at + seconds < self.deadline:
            self.set_deadline(sent_at + seconds)

    def end_replace(self) -> None:
        """Record that requests from here on are executed after the set."""
        self._replaced_at = clock.now()

    def note_unanswered_replace(self, seconds: float) -> None:
        """Record that a request to set the lease got no reply.

        The server may execute it later, even after a renewal.
        """
        now = clock.now()
        earlier = self._unanswered_seconds if now < self._unanswered_until else math.inf
        self._unanswered_seconds = min(seconds, earlier)
        self._unanswered_until = now + UNANSWERED_REQUEST_SECONDS

    def guaranteed_ttl(self, seconds: float, sent_at: float) -> float:
        """Return how much of a lease of `seconds` remains after every unanswered request."""
        if sent_at < self._unanswered_until:
            return min(seconds, self._unanswered_seconds)
        return seconds

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
