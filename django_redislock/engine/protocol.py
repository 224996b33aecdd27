"""How a lock is acquired, renewed and released, as generators of operations.

`runners` executes them, for sync and async code. A lock is a weighted FIFO semaphore with leases.
The queue follows the ticket lock of Mellor-Crummey and Scott (1991), with the handover inside the
release. Leases follow Gray and Cheriton (1989).
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from redis.exceptions import ConnectionError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .. import clock
from ..exceptions import LockError
from ..keys import LockKeys
from ..text import printable
from ..tokens import new_stored_token, token_of
from . import store
from .lease import Lease, Retake
from .operations import (
    Batch,
    Call,
    Flow,
    Join,
    Sleep,
    Wait,
)
from .outages import is_outage
from .parsing import text, valid_reply
from .store import AcquireRequest, RenewMode
from .timing import (
    CLEANUP_TIMEOUT_SECONDS,
    FINAL_REPLY_TIMEOUT_SECONDS,
    POLL_INTERVAL_SECONDS,
    REPLICA_WAIT_SECONDS,
    REPLY_TIMEOUT_SECONDS,
)
from .waiters import WaitingCaller

T = TypeVar("T")


class Acquired(NamedTuple):
    """A lock that was acquired."""

    fence_token: int

    deadline: float
    """When the lease expires, on the holder's clock."""

    is_confirmed: bool = True
    """Whether the lease runs in full, and not only for `AcquireRequest.grant_ttl`."""

    took_over: bool = False
    """Whether it was taken over from the predecessor."""


def acquire(request: AcquireRequest, deadline: float | None) -> Flow[Acquired | None]:
    """Acquire a lock, or return None if it is not acquired by `deadline`.

    Args:
        request: The lock and its holder-to-be.
        deadline: When to give up. None means never, and ``-inf`` means not to wait at all.
    """
    waiter: WaitingCaller | None = None
    if deadline != -math.inf:
        waiter = yield Join(request.keys, request.token)
        waiter.rides_outages = request.rides_outages
    try:
        while True:
            left = _left(deadline)
            is_last = waiter is None or left <= 0
            acquired = None
            try:
                acquired = yield from _ask(request, None if is_last else waiter, left)
            except RedisError as error:
                if waiter is None or not _rides(request, deadline, error):
                    raise
                waiter.inbox.request_failed(waiter, error)
            else:
                if waiter:
                    waiter.failures = 0
                    waiter.inbox.end_turn(waiter)
            if waiter and not (acquired or is_last):
                acquired = yield from _await_grant(request, waiter, _left(deadline))
            if acquired and clock.now() < acquired.deadline:  # else the reply came too late
                return acquired
            if acquired and is_last:
                raise RedisTimeoutError(
                    f"Redis replied after the lease of lock {request.keys.name!r} had expired, so "
                    "the lock was not acquired"
                )
            if is_last:
                return None
    finally:
        if waiter:
            waiter.inbox.waiters.pop(waiter.ticket, None)
            waiter.inbox.end_turn(waiter)


def _left(deadline: float | None) -> float:
    """Return the seconds until a deadline. Without one, they are infinite."""
    return math.inf if deadline is None else deadline - clock.now()


def _ask(
    request: AcquireRequest, waiter: WaitingCaller | None, left: float
) -> Flow[Acquired | None]:
    """Send a request, and return None if the lock is not free. Then the `waiter` is queued.

    Without a waiter, the caller is not queued, or leaves the queue.
    """
    sent_at = clock.now()
    address = waiter.address(sent_at) if waiter else ""
    call = store.acquire(request, address, _reply_limit(request, left))
    may_arrive_late = request.may_arrive_late
    request.may_arrive_late = True  # until there is a reply
    try:
        reply = yield call
        if not isinstance(reply, int):
            with valid_reply():
                held_as = printable(text(reply))
            raise _refused(request, held_as)
        took_over = reply < 0
        request.was_queued = request.was_queued or bool(address and not reply)
        if reply and request.min_replicas:
            reply = yield from _replicate(call, request)
    except (ResponseError, LockError):
        request.may_arrive_late = may_arrive_late
        raise
    request.may_arrive_late = may_arrive_late
    if not reply:
        return None
    return Acquired(abs(reply), sent_at + request.lease, took_over=took_over)


def _reply_limit(request: AcquireRequest, left: float) -> float | None:
    """Return how long the reply may take. None means as long as the client allows."""
    if left == math.inf:
        return request.reply_timeout
    limit = request.reply_timeout or REPLY_TIMEOUT_SECONDS
    if left == -math.inf:  # a caller that does not wait gets the full time
        return limit
    return min(limit, max(left, FINAL_REPLY_TIMEOUT_SECONDS))


def _rides(request: AcquireRequest, deadline: float | None, error: Exception) -> bool:
    """Return whether a caller that waits tries again after an error.

    Without a limit, a caller that was never queued would wait indefinitely for a server whose
    address is wrong, or that never gets its replicas.
    """
    waits = request.was_queued if deadline is None else clock.now() < deadline
    return waits and request.rides_outages and is_outage(error)


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
        fence, reply = yield Batch((call,), limit, request.min_replicas)
        if not (isinstance(fence, int) and fence):
            return 0
        replicas = _confirmed(reply)
        if replicas >= request.min_replicas:
            return fence
        if clock.now() >= deadline:  # the key may have moved to another node a moment ago
            raise _too_few_replicas(request.keys.name, "acquired", replicas, request.min_replicas)
        yield Sleep(POLL_INTERVAL_SECONDS)


def _confirmed(reply: Any) -> int:
    """Return how many replicas confirmed, from the reply of WAIT.

    Raises:
        redis.exceptions.ResponseError: The server did not wait: it has become a replica.
    """
    if isinstance(reply, Exception):
        raise reply
    with valid_reply():
        return int(reply)


def _too_few_replicas(name: str, action: str, replicas: int, wanted: int) -> ConnectionError:
    return ConnectionError(
        f"Lock {name!r} was not {action}: {replicas} of {wanted} replica(s) confirmed it within "
        f"{REPLICA_WAIT_SECONDS:g} s (min_replicas={wanted})"
    )


def _await_grant(
    request: AcquireRequest, waiter: WaitingCaller, remaining: float
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
    killed: bool = False,
    reply_timeout: float | None = None,
) -> Flow[bool]:
    """Release a lock and return whether `token` held it.

    Args:
        keys: The lock.
        token: The lock token.
        at_least_for: The lock stays unavailable until this many seconds after its acquisition.
        fence_token: The fencing token of a hold that the caller believes in. If the token does
            not hold the lock, the history records the loss.
        killed: Whether the holder is dead. The history records that.
        reply_timeout: Seconds to wait for the reply; None means as long as the client allows.
    """
    reply = yield store.release(
        keys,
        token,
        at_least_for=at_least_for,
        fence_token=fence_token,
        killed=killed,
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
    with valid_reply():
        [ttl] = store.ttls(reply)
    if ttl and replicas:
        confirmed = _confirmed(replicas[0])
        if confirmed < min_replicas:
            raise _too_few_replicas(keys.name, "extended", confirmed, min_replicas)
    return ttl


def raise_fence(lease: Lease, fence_token: int) -> Flow[bool]:
    """Give a lease a larger fencing token, and return whether the lock is still held."""
    raised = yield store.raise_fence(
        lease.keys, lease.token, fence_token, reply_timeout=lease.reply_timeout
    )
    if raised:
        lease.fence_token = fence_token
    return bool(raised)


@dataclass(slots=True)
class PendingRelease:
    """A release that the renewer repeats until the server responds."""

    keys: LockKeys
    token: str
    at_least_for: float
    due: float

    until: float
    """When to give up, because the lease has expired."""


def release_all(
    releases: Sequence[PendingRelease], reply_timeout: float
) -> Flow[list[tuple[PendingRelease, bool | Exception]]]:
    """Release locks of one server in one round trip.

    Returns:
        Each of them with the result of its `release()`, or with the error reply of Redis.
    """
    calls = tuple(
        store.release(each.keys, each.token, at_least_for=each.at_least_for) for each in releases
    )
    replies = yield Batch(calls, reply_timeout, apart=True)
    return [
        (each, reply if isinstance(reply, Exception) else reply == 1)
        for each, reply in zip(releases, replies, strict=True)
    ]


def renew_all(
    leases: Sequence[Lease], reply_timeout: float
) -> Flow[list[tuple[Lease, float | Exception]]]:
    """Renew leases of one renewer in one round trip.

    Returns:
        Each lease with its remaining seconds, or with the error reply of Redis.
    """
    groups = store.in_groups(leases)
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
    if min_replicas:
        confirmed = _confirmed(replies.pop())
        if confirmed < min_replicas:
            too_few = ConnectionError(
                f"{confirmed} of {min_replicas} replica(s) confirmed the renewal"
            )
    results: list[tuple[Lease, float | Exception]] = []
    for group, reply in zip(groups, replies, strict=True):
        if isinstance(reply, Exception):
            results += [(lease, reply) for lease in group]
            continue
        with valid_reply():
            ttls = [*zip(group, store.ttls(reply), strict=True)]
        for lease, ttl in ttls:
            results.append((lease, too_few if too_few and ttl else ttl))
    return results


def retake_all(
    leases: Sequence[Lease], reply_timeout: float
) -> Flow[list[tuple[Lease, int | Exception]]]:
    """Acquire lost leases of one server again, without waiting.

    If a server grants a smaller fencing token than the hold has, it gets the larger one. Otherwise
    a later holder could get the same token.

    Returns:
        Each lease with its fencing token there, with 0 if another holder has the lock, or with an
        error.
    """
    # Without a retake, another thread has ended the hold.
    retakes = [(lease, lease.retake) for lease in leases if lease.retake]
    for lease, retake in retakes:
        _prepare(lease, retake)
    calls = [store.acquire(retake.request, "", None) for _, retake in retakes]
    replies = yield Batch(tuple(calls), reply_timeout, leases[0].min_replicas, apart=True)
    if leases[0].min_replicas and _confirmed(replies.pop()) < leases[0].min_replicas:
        replies = [0 for _ in retakes]
    results: list[tuple[Lease, int | Exception]] = []
    for (lease, retake), reply in zip(retakes, replies, strict=True):
        fence_token: int | Exception = reply if isinstance(reply, int | Exception) else 0
        if isinstance(fence_token, int) and 0 < fence_token < retake.fence_token:
            raised = yield from raise_fence(lease, retake.fence_token)
            fence_token = retake.fence_token if raised else 0
        results.append((lease, fence_token))
    return results


def _prepare(lease: Lease, retake: Retake) -> None:
    """Use a new stored token, because a late release of the earlier one may be under way."""
    if not retake.was_sent:
        lease.token = new_stored_token(token_of(lease.token))
        retake.request = replace(retake.request, token=lease.token)
        retake.was_sent = True


def force_release(
    keys: LockKeys, token: str | None, by: str = "", reason: str = ""
) -> Flow[tuple[str, ...]]:
    """Release a lock for all holders, or for those with `token`, and return their tokens.

    Args:
        keys: The lock.
        token: A lock token, or a stored token. At most one holder has a stored token. None means
            all holders.
        by: Who releases the lock, for the history.
        reason: Why, for the history.
    """
    released: list[Any] = yield store.force_release(keys, token, by, reason)
    with valid_reply():
        return tuple(token_of(text(each)) for each in released)
