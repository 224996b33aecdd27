"""A lease is one lock on one server, as its holder knows it, judged by the holder's clock.

Several threads use a lease, and a signal handler may interrupt its changes. It does without a
`threading.Lock`, because the handler could deadlock on it.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any
from weakref import ref

from .. import clock
from ..backends import Server
from ..identity import Owner
from ..keys import LockKeys
from .timing import CONFIRM_DELAY_SECONDS, UNANSWERED_REQUEST_SECONDS

if TYPE_CHECKING:
    from .store import AcquireRequest


class LeaseState(Enum):
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


@dataclass(slots=True)
class Retake:
    """How the renewer acquires a lost lease again. Only a quorum lock has such leases."""

    request: "AcquireRequest"

    fence_token: int
    """The fencing token of the hold. The server must know one that is at least as large."""

    was_sent: bool = False
    """Whether a request was sent since the loss, so that the server may hold the lock for it."""


@dataclass(eq=False, slots=True)
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

    owner: "ref[Owner]"
    kind: str
    weight: int
    is_renewed: bool

    renewer: Any = field(repr=False)
    """The renewer that it belongs to. The lease itself does not use it."""

    on_lost: "Callable[[Lease], None]"
    """Called by the renewer if it finds the loss."""

    at_least_for: float = 0
    """Seconds from the acquisition for which the lock stays unavailable."""

    max_hold: float = math.inf
    """Seconds from the beginning of the hold after which the lease counts as lost."""

    min_replicas: int = 0

    drift: tuple[float, float] = (0.0, 0.0015)
    """The part of a lease to ignore because of clock drift, and because a server counts in whole
    milliseconds: a fraction of the lease, and seconds."""

    reply_timeout: float | None = None
    """Seconds to wait for a reply; None means as long as the client allows."""

    retake: Retake | None = None
    """How to acquire it again if it is lost, or None."""

    state: LeaseState = field(default=LeaseState.PENDING, init=False)
    fence_token: int = field(default=0, init=False)
    deadline: float = field(default=0.0, init=False)

    max_deadline: float = field(default=math.inf, init=False)
    """When `max_hold` has passed, on the holder's clock."""

    due: float = field(default=0.0, init=False)
    """When to renew it, or to acquire it again if it was lost."""

    due_tolerance: float = field(default=0.0, init=False)
    """It can be renewed this many seconds before it is due, together with other leases."""

    needs_renewal: bool = field(default=False, init=False)
    """Whether it expires before its hold must end."""

    is_confirmed: bool = field(default=True, init=False)
    """Whether the lease runs in full. If not, it is a grant that a renewal must confirm."""

    is_loss_reported: bool = field(default=False, init=False)
    """Whether the renewer has noticed the loss."""

    may_be_acquired_late: bool = field(default=False, init=False)
    """Whether Redis may still execute a request for it that got no reply, also after its end."""

    process: int = field(default_factory=os.getpid, init=False)
    """The process that acquired it. A forked child has a copy of the object."""

    _expires: float = field(default=0.0, init=False)
    """When it expires in Redis, without what `drift` takes off, and without `max_hold`."""

    _is_lost: bool = field(default=False, init=False)
    _began: float = field(default=0.0, init=False)
    _set_requests: tuple[SetRequest, ...] = field(default=(), init=False)

    def begin(self, fence_token: int, deadline: float, *, is_confirmed: bool = True) -> None:
        """Record that the lock was acquired until `deadline`."""
        self.fence_token = fence_token
        self._began = clock.now()
        self.is_confirmed = is_confirmed
        self.set_deadline(deadline)  # first, because `lost` compares it with the clock
        if self.state is LeaseState.PENDING:  # not if an interrupt ended it in another thread
            self.state = LeaseState.HELD
        if not is_confirmed:
            self.due = min(self.due, self._began + CONFIRM_DELAY_SECONDS)
            self.due_tolerance = 0.0

    def begin_lost(self) -> None:
        """Record that the hold begins without this server. The renewer acquires it later."""
        self._began = clock.now()
        self._is_lost = True
        self.state = LeaseState.HELD
        self.note_loss_reported()

    def begin_again(self, fence_token: int, deadline: float) -> None:
        """Record that the lock was acquired again after a loss."""
        self.fence_token = fence_token
        self.at_least_for = self.apply_at_least_for(0)
        self._began = clock.now()
        self._set_requests = ()
        self.is_confirmed = True
        if self.retake:
            self.retake.was_sent = False
        self.set_deadline(deadline)
        # After the deadline, because `lost` compares that with the clock.
        self._is_lost = False
        self.is_loss_reported = False

    def begin_max_hold(self) -> None:
        """Count `max_hold` from now on, because the caller has all leases that it needs."""
        self.max_deadline = clock.now() + self.max_hold

    def set_deadline(self, deadline: float) -> None:
        """Record when the lease expires in Redis.

        Its renewal is due after a third of the time, or of `seconds` if that is less. So an
        extension or a long `at_least_for` does not delay the notice of a loss.
        """
        self._expires = deadline
        now = clock.now()
        drift, seconds = self.drift
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
        if self.state is LeaseState.HELD and clock.now() >= self.deadline:
            self._is_lost = True
        return self._is_lost

    @property
    def may_be_held(self) -> bool:
        """Whether the server may have the lock for it, so that it must be released."""
        return self.fence_token > 0 or (self.retake is not None and self.retake.was_sent)

    def mark_lost(self) -> None:
        """Record that Redis does not hold the lock for it any more."""
        self._is_lost = True

    def note_loss_reported(self) -> None:
        """Record that the holder knows of the loss. An attempt to acquire it again is due after
        the time of a renewal."""
        self.is_loss_reported = True
        self.due = clock.now() + self.seconds / 3
        self.due_tolerance = 0.0

    def end(self) -> None:
        """Record that the holder gives the lease up. Whether it is lost does not change again."""
        self._is_lost = self.lost
        self.state = LeaseState.ENDED

    @property
    def is_inherited(self) -> bool:
        """Whether a forked child has this copy: then the lease belongs to the parent process."""
        return self.process != os.getpid()
