"""The Lua scripts as typed requests: one function per script builds its call."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from ..conf import conf
from ..keys import LockKeys
from ..lua import ACQUIRE, FENCE, FORCE, HEARTBEAT, RELEASE, RENEW
from .operations import Call
from .timing import (
    GRANT_TTL_SECONDS,
    MAX_LOCKS_PER_CALL,
    REPLY_TIMEOUT_SECONDS,
    WAITER_TTL_SECONDS,
)

T = TypeVar("T")

WAITER_TTL_MS = round(WAITER_TTL_SECONDS * 1000)

NO_ADDRESS = "none 0 0"
"""The address of a caller that does not wait."""

RenewMode = Literal["renew", "set"]
"""``renew`` never shortens a lease. ``set`` sets when it expires."""


@dataclass(slots=True)
class AcquireRequest:
    """One acquisition: what is sent, and what is known of earlier attempts to send it. Sending it
    again is harmless, because Redis recognises it by its token."""

    keys: LockKeys

    token: str = field(repr=False)
    """The stored token. No other request has it, except one that continues this one."""

    kind: str
    capacity: int
    weight: int

    lease: float
    """Seconds."""

    payload: str
    """The holder payload."""

    renewal_confirms_grant: bool = False
    """Whether a renewal confirms a grant, so that the waiter need not."""

    reply_timeout: float | None = None
    """Seconds to wait for each reply. None means what the client allows, or
    `REPLY_TIMEOUT_SECONDS`."""

    predecessor: str = field(default="", repr=False)
    """The token of the hold to take over, or ""."""

    once: bool = False
    """Whether not to send it again if the reply is lost: the reply to a repeated request does not
    show whether the first one took a hold over."""

    min_replicas: int = 0
    """The number of replicas that must have the lock before it counts as acquired."""

    rides_outages: bool = False
    """Whether a caller that waits tries again while the server is away."""

    was_queued: bool = field(default=False, compare=False)
    """Whether the server has queued the caller, so that it is known to store locks."""

    may_arrive_late: bool = field(default=False, compare=False)
    """Whether Redis may still execute a request that got no reply."""

    @property
    def grant_ttl(self) -> float:
        """Seconds for which a grant lasts until it is confirmed."""
        return min(GRANT_TTL_SECONDS, self.lease)


def in_groups(items: Sequence[T]) -> list[Sequence[T]]:
    """Return the items in groups for one call each."""
    starts = range(0, len(items), MAX_LOCKS_PER_CALL)
    return [items[start : start + MAX_LOCKS_PER_CALL] for start in starts]


def acquire(request: AcquireRequest, address: str, reply_timeout: float | None) -> Call:
    """Acquire a lock. If it is not free, join the queue or stay in it.

    `address` is where a grant is sent. Without it, the caller does not wait.
    """
    keys = request.keys
    heartbeat_ms = WAITER_TTL_MS if address else 0
    terms = (
        f"{request.kind} {request.capacity} {request.weight} {round(request.lease * 1000)} "
        f"{round(request.grant_ttl * 1000)} {heartbeat_ms} "
        f"{address or NO_ADDRESS} {request.predecessor}"
    )
    args = (keys.name, request.token, terms, request.payload, conf.history)
    return Call(ACQUIRE, keys.all, args, limit=reply_timeout, once=request.once)


def release(
    keys: LockKeys,
    token: str,
    *,
    at_least_for: float = 0,
    fence_token: int = 0,
    killed: bool = False,
    reply_timeout: float | None = None,
) -> Call:
    """Release a lock and hand it over, or leave its queue."""
    how = "killed" if killed else "released"
    args = (keys.name, token, round(at_least_for * 1000), fence_token, how, conf.history)
    return Call(RELEASE, keys.all, args, limit=reply_timeout, urgent=True)


def heartbeat(
    locks: Sequence[LockKeys], inbox: str, epoch: int, tokens_by_lock: Iterable[Sequence[str]]
) -> Call:
    """Keep the waiters of an inbox alive."""
    first = locks[0]
    of_locks = [key for each in locks for key in (each.lock, each.queue, each.waiting)]
    keys = (first.index, first.inboxes, first.locks, *of_locks, first.history)
    tokens = map(" ".join, tokens_by_lock)
    return Call(HEARTBEAT, keys, (inbox, epoch, WAITER_TTL_MS, *tokens, conf.history))


def renew(locks: Sequence[LockKeys], mode: RenewMode, leases: Sequence[tuple[str, float]]) -> Call:
    """Renew locks. `leases` has the token and the seconds for each lock."""
    first = locks[0]
    keys = (first.index, first.locks, *[each.lock for each in locks], first.history)
    wanted = " ".join([f"{token} {seconds * 1000:.0f}" for token, seconds in leases])
    return Call(RENEW, keys, (mode, wanted, conf.history))


def ttls(reply: str | bytes) -> list[float]:
    """Return the seconds that `renew` left of each lease, or 0 for one that is not held."""
    return [int(ms) / 1000 for ms in reply.split()]


def raise_fence(
    keys: LockKeys, token: str, fence_token: int, *, reply_timeout: float | None
) -> Call:
    """Give a hold a larger fencing token."""
    args = (keys.name, token, fence_token, conf.history)
    return Call(FENCE, (keys.index, keys.lock, keys.history), args, limit=reply_timeout)


def force_release(keys: LockKeys, token: str | None, by: str, reason: str) -> Call:
    """Release a lock for all of its holders, or for the holders with that token."""
    field = "" if token is None else f"h:{token}"
    args: tuple[Any, ...] = (keys.name, field, by, reason, conf.history)
    # If it was repeated, it could release the next holder, who may hold the lock by then.
    return Call(FORCE, keys.all, args, limit=REPLY_TIMEOUT_SECONDS, once=True)
