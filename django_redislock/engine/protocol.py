"""How a lock is acquired, renewed and released, as generators of operations.

`runners` executes them, for sync and async code. A lock is a weighted FIFO semaphore with leases.
The queue follows the ticket lock of Mellor-Crummey and Scott (1991), with the handover inside the
release. Leases follow Gray and Cheriton (1989).
"""

import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple, TypeVar

from redis.exceptions import ConnectionError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .. import clock
from ..exceptions import LockError
from ..keys import LockKeys
from ..text import printable
from . import store
from .leases import Lease
from .operations import (
    Batch,
    Call,
    Flow,
    Join,
    Sleep,
    Wait,
)
from .parsing import text
from .store import AcquireRequest, RenewMode
from .timing import (
    CLEANUP_TIMEOUT_SECONDS,
    FINAL_REPLY_TIMEOUT_SECONDS,
    HEARTBEAT_SECONDS,
    REPLICA_WAIT_SECONDS,
    REPLY_TIMEOUT_SECONDS,
)
from .transport import POLL_INTERVAL_SECONDS

T = TypeVar("T")

MAX_LOCKS_PER_CALL = 100
"""More locks in one script call would delay other clients."""

MAX_CHECKED = 1000
"""A heartbeat looks for that many waiters in their queues, and the next one for others."""

GRANT = re.compile(r"(?<!\S)([0-9]{1,16}) ([1-9][0-9]{0,15}) ([0-9]{1,16})(?!\S)")
"""A grant in an inbox: ticket, fencing token and epoch (ms)."""

MAX_MESSAGE_CHARACTERS = 1000
"""The length of a message in an inbox that is read. A script sends a shorter one. A search in a
very long one would stop the process."""


class Acquired(NamedTuple):
    """A lock that was acquired."""

    fence_token: int

    deadline: float
    """When the lease expires, on the holder's clock."""

    is_confirmed: bool = True
    """Whether the lease runs in full, and not only for `AcquireRequest.grant_ttl`."""

    took_over: bool = False
    """Whether it was taken over from the predecessor."""


class Grant(NamedTuple):
    """A grant that a waiter received."""

    fence_token: int

    since: float
    """A time before the grant, on the waiter's clock."""


@dataclass(eq=False, slots=True)
class Waiter:
    """One acquisition that may have to wait. `Inbox.join` makes it."""

    inbox: "Inbox"
    keys: LockKeys
    token: str
    ticket: int

    is_waiting: bool = False
    """Whether it waits for news. Only then heartbeats include it."""

    news: Grant | Exception | bool = False
    """A grant or an error that arrived, or True if the waiter has to ask again."""

    wakeup: Any = None
    """An event that is set if there is news."""

    def tell(self, news: Grant | Exception | bool) -> None:
        if not isinstance(self.news, Grant):
            self.news = news
        if self.wakeup:
            self.wakeup.set()

    def take_news(self) -> Grant | None:
        """Return a grant, or None. Raise an error that the reader got."""
        news, self.news = self.news, False
        if isinstance(news, Exception):
            raise news
        return news if isinstance(news, Grant) else None


class Inbox:
    """The inbox of the waiters of one process, or of one event loop, for their grants.

    One heartbeat keeps all waiters of an inbox in their queues. Heartbeats, and requests that
    acquire, carry their epoch: the time (ms) at which they were sent, on the waiter's clock. The
    scripts copy the last epoch into a grant. So a grant is known to be younger than its epoch,
    without a comparison of clocks.

    Args:
        prefixes: The prefixes of its keys in Redis, one for each bucket.
    """

    def __init__(self, prefixes: Sequence[str]) -> None:
        self.id = os.urandom(8).hex()
        self.lists = tuple(f"{each}{self.id}" for each in prefixes)
        self.waiters: dict[int, Waiter] = {}
        self.heartbeat_due = -math.inf
        self._tickets = count(1)
        self._checked = 0

    def join(self, keys: LockKeys, token: str) -> Waiter:
        """Return a new waiter. It stays in `waiters` until it is removed."""
        if not self.waiters:  # its request is a heartbeat, too
            self.heartbeat_due = clock.now() + HEARTBEAT_SECONDS
        waiter = Waiter(self, keys, token, next(self._tickets))
        self.waiters[waiter.ticket] = waiter
        return waiter

    def deliver(self, text: str) -> None:
        """Tell waiters of their grants: "ticket fence epoch" of each."""
        for ticket, fence_token, epoch in GRANT.findall(text[:MAX_MESSAGE_CHARACTERS]):
            if waiter := self.waiters.get(int(ticket)):
                waiter.tell(Grant(int(fence_token), int(epoch) / 1000))

    def tell_all(self, news: Exception | bool) -> None:
        """Tell all waiters of an error, or (True) to ask again."""
        for waiter in list(self.waiters.values()):
            waiter.tell(news)

    def heartbeat(self) -> Flow[None]:
        """Keep the waiters in their queues, and tell those that are in none to ask again."""
        now = clock.now()
        self.heartbeat_due = now + HEARTBEAT_SECONDS
        waiting = [each for each in list(self.waiters.values()) if each.is_waiting]
        if not waiting:
            return
        first = self._checked % len(waiting)
        checked = (waiting[first:] + waiting[:first])[:MAX_CHECKED]
        self._checked = first + len(checked)
        tokens: dict[LockKeys, list[str]] = {each.keys: [] for each in waiting}
        for waiter in checked:
            tokens[waiter.keys].append(waiter.token)
        groups = _by_bucket(tokens, lambda lock: lock)
        calls = []
        for group in groups:
            by_lock = [tokens[lock] for lock in group]
            calls.append(store.heartbeat(group, self.id, int(now * 1000), by_lock))
        replies = yield Batch(tuple(calls), REPLY_TIMEOUT_SECONDS)
        missing = set(" ".join(map(text, replies)).split())
        for waiter in checked:
            if waiter.token in missing:
                waiter.tell(True)


def acquire(request: AcquireRequest, deadline: float | None) -> Flow[Acquired | None]:
    """Acquire a lock, or return None if it is not acquired by `deadline`.

    Args:
        request: The lock and its holder-to-be.
        deadline: When to give up. None means never, and ``-inf`` means not to wait at all.
    """
    waiter: Waiter | None = None
    if deadline != -math.inf:
        waiter = yield Join(request.keys, request.token)
    try:
        while True:
            sent_at = clock.now()
            remaining = math.inf if deadline is None else deadline - sent_at
            reply_timeout = request.reply_timeout
            if remaining < math.inf:
                reply_timeout = reply_timeout or REPLY_TIMEOUT_SECONDS
                if remaining > -math.inf:  # a caller that does not wait gets the full timeout
                    limit = max(remaining, FINAL_REPLY_TIMEOUT_SECONDS)
                    reply_timeout = min(limit, reply_timeout)
            address = ""
            if waiter and remaining > 0:
                address = f"{waiter.inbox.id} {waiter.ticket} {int(sent_at * 1000)}"
            call = store.acquire(request, address, reply_timeout)
            request.may_arrive_late = True
            reply = yield call
            request.may_arrive_late = False
            if not isinstance(reply, int):
                raise _refused(request, printable(text(reply)))
            took_over, acquired = reply < 0, None
            if reply and request.min_replicas:
                reply = yield from _replicate(call, request)
            if reply:
                acquired = Acquired(abs(reply), sent_at + request.lease, took_over=took_over)
            elif waiter and remaining > 0:
                acquired = yield from _await_grant(request, waiter, remaining)
            if acquired and clock.now() < acquired.deadline:  # else the reply came too late
                return acquired
            if acquired and remaining <= 0:
                raise RedisTimeoutError(
                    f"Redis replied after the lease of lock {request.keys.name!r} had expired, so "
                    "the lock was not acquired"
                )
            if remaining <= 0:
                return None
    finally:
        if waiter:
            waiter.inbox.waiters.pop(waiter.ticket, None)


def _refused(request: AcquireRequest, held_as: str) -> LockError:
    name = request.keys.name
    used_as, wanted = (
        "read-write lock" if kind == "readwrite" else kind for kind in (held_as, request.kind)
    )
    error = LockError(
        f"Lock {name!r} is in use as a {used_as}, so it cannot be acquired as a {wanted}. "
        "Use another name.",
        lock_name=name,
    )
    error.held_as = held_as
    return error


def _replicate(call: Call, request: AcquireRequest) -> Flow[int]:
    """Repeat a successful call together with WAIT, until enough replicas have the lock.

    Returns:
        The fencing token that the replicas have. It is another one if Redis lost the data in
        between. 0 if the lock was lost.
    """
    deadline = clock.now() + REPLICA_WAIT_SECONDS
    while True:
        limit = None if call.limit is None else call.limit + REPLICA_WAIT_SECONDS
        fence, replicas = yield Batch((call,), limit, request.min_replicas)
        if not (isinstance(fence, int) and fence):
            return 0
        if replicas >= request.min_replicas:
            return fence
        if clock.now() >= deadline:  # the key may have moved to another node a moment ago
            raise _too_few_replicas(request.keys.name, "acquired", replicas, request.min_replicas)
        yield Sleep(POLL_INTERVAL_SECONDS)


def _too_few_replicas(name: str, action: str, replicas: int, wanted: int) -> ConnectionError:
    return ConnectionError(
        f"Lock {name!r} was not {action}: {replicas} of {wanted} replica(s) confirmed it within "
        f"{REPLICA_WAIT_SECONDS:g} s (min_replicas={wanted})"
    )


def _await_grant(
    request: AcquireRequest, waiter: Waiter, remaining: float
) -> Flow[Acquired | None]:
    """Wait for a grant, or until the waiter has to ask again."""
    grant = yield Wait(waiter, remaining)
    # The grant is younger than the request whose epoch it has. If that was recent, the grant is
    # still valid and a renewal confirms it in time. Otherwise the next call of the script confirms
    # it. An epoch in the future is forged.
    if grant is None or request.min_replicas or not request.renewal_confirms_grant:
        return None
    if not 0 <= clock.now() - grant.since < request.grant_ttl / 2:
        return None
    deadline = grant.since + request.grant_ttl
    return Acquired(grant.fence_token, deadline, is_confirmed=False)


def cleanup_failed_acquire(request: AcquireRequest, error: BaseException) -> Flow[bool]:
    """Release what a failed acquisition may have left, and return whether that is certain."""
    if isinstance(error, RedisTimeoutError):
        return False  # Redis does not respond, so another request would have to wait, too.
    with suppress(RedisError):
        released = yield from release(
            request.keys, request.token, reply_timeout=CLEANUP_TIMEOUT_SECONDS
        )
        return released or not request.may_arrive_late
    return False


def release(
    keys: LockKeys,
    token: str,
    *,
    at_least_for: float = 0,
    fence_token: int = 0,
    reply_timeout: float | None = None,
) -> Flow[bool]:
    """Release a lock and return whether `token` held it.

    Args:
        keys: The lock.
        token: The lock token.
        at_least_for: The lock stays unavailable until this many seconds after its acquisition.
        fence_token: The fencing token of a hold that the caller believes in. If the token does
            not hold the lock, the history records the loss.
        reply_timeout: Seconds to wait for the reply; None means as long as the client allows.
    """
    reply = yield store.release(
        keys,
        token,
        at_least_for=at_least_for,
        fence_token=fence_token,
        reply_timeout=reply_timeout,
    )
    return bool(reply)


def renew(
    keys: LockKeys,
    token: str,
    seconds: float,
    mode: RenewMode,
    *,
    reply_timeout: float | None = None,
    min_replicas: int = 0,
) -> Flow[float]:
    """Renew or set a lease, and return its remaining seconds: 0 if the lock is not held."""
    call = store.renew([keys], mode, [(token, seconds)])
    reply, *replicas = yield Batch((call,), reply_timeout, min_replicas)
    [ttl] = store.ttls(reply)
    if ttl and replicas and replicas[0] < min_replicas:
        raise _too_few_replicas(keys.name, "extended", replicas[0], min_replicas)
    return ttl


def raise_fence(lease: Lease, fence_token: int) -> Flow[bool]:
    """Give a lease a larger fencing token, and return whether the lock is still held."""
    raised = yield store.raise_fence(
        lease.keys, lease.token, fence_token, reply_timeout=lease.reply_timeout
    )
    if raised:
        lease.fence_token = fence_token
    return bool(raised)


def release_all(
    leases: Sequence[Lease], reply_timeout: float
) -> Flow[list[tuple[Lease, bool | Exception]]]:
    """Release leases of one server in one round trip.

    Returns:
        Each lease with the result of its `release()`, or with the error reply of Redis.
    """
    calls = tuple(
        store.release(lease.keys, lease.token, at_least_for=lease.at_least_for) for lease in leases
    )
    replies = yield Batch(calls, reply_timeout, apart=True)
    return [
        (lease, reply if isinstance(reply, Exception) else reply == 1)
        for lease, reply in zip(leases, replies, strict=True)
    ]


def renew_all(
    leases: Sequence[Lease], reply_timeout: float
) -> Flow[list[tuple[Lease, float | Exception]]]:
    """Renew leases of one renewer in one round trip.

    Returns:
        Each lease with its remaining seconds, or with the error reply of Redis for its bucket.
    """
    groups = _by_bucket(leases, lambda lease: lease.keys)
    calls = tuple(
        store.renew(
            [lease.keys for lease in group],
            "renew",
            [(lease.token, lease.apply_at_least_for(lease.seconds)) for lease in group],
        )
        for group in groups
    )
    min_replicas = leases[0].min_replicas
    replies = yield Batch(calls, reply_timeout, min_replicas, apart=True)
    too_few = None
    if min_replicas and (confirmed := replies.pop()) < min_replicas:
        too_few = ConnectionError(
            f"{confirmed} of {min_replicas} replica(s) confirmed the renewal"
        )
    results: list[tuple[Lease, float | Exception]] = []
    for group, reply in zip(groups, replies, strict=True):
        if isinstance(reply, Exception):
            results += [(lease, reply) for lease in group]
            continue
        for lease, ttl in zip(group, store.ttls(reply), strict=True):
            results.append((lease, too_few if too_few and ttl else ttl))
    return results


def _by_bucket(items: Iterable[T], keys_of: Callable[[T], LockKeys]) -> list[list[T]]:
    """Return the items of each bucket, at most `MAX_LOCKS_PER_CALL` in one list."""
    by_bucket: dict[str, list[T]] = {}
    for item in items:
        by_bucket.setdefault(keys_of(item).index, []).append(item)
    return [
        group[start : start + MAX_LOCKS_PER_CALL]
        for group in by_bucket.values()
        for start in range(0, len(group), MAX_LOCKS_PER_CALL)
    ]


def force_release(keys: LockKeys, token: str | None) -> Flow[tuple[str, ...]]:
    """Release a lock for all holders, or for the one with `token`, and return their tokens."""
    released: list[Any] = yield store.force_release(keys, token)
    return tuple(text(each) for each in released)
