"""How a lock is acquired, renewed and released, as generators of operations.

`runners` executes them, for sync and async code. A lock is a weighted FIFO semaphore with leases.
The queue follows the ticket lock of Mellor-Crummey and Scott (1991), with the handover inside the
release. Leases follow Gray and Cheriton (1989).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

from redis.exceptions import ConnectionError, RedisError, TimeoutError

from .. import clock
from ..exceptions import LockError
from ..keys import LockKeys
from ..text import printable
from . import store
from .inbox import Waiter
from .leases import Lease
from .operations import (
    CLEANUP_TIMEOUT_SECONDS,
    REPLICA_WAIT_SECONDS,
    Batch,
    Call,
    Flow,
    Join,
    Sleep,
    Wait,
)
from .runners import text
from .store import REPLY_TIMEOUT_SECONDS, AcquireRequest, RenewMode
from .transport import POLL_INTERVAL_SECONDS

FINAL_REPLY_TIMEOUT_SECONDS = 0.5
"""How long the reply to the last request of a wait may take."""

MAX_RENEWALS_PER_CALL = 100
"""More locks in one script call would delay other clients."""


class Grant(NamedTuple):
    """A lock that was acquired."""

    fence_token: int

    deadline: float
    """When the lease expires, on the holder's clock."""

    is_confirmed: bool = True
    """Whether the lease runs in full, and not only for `AcquireRequest.grant_ttl`."""

    took_over: bool = False
    """Whether it was taken over from the predecessor."""


def acquire(request: AcquireRequest, deadline: float | None) -> Flow[Grant | None]:
    """Acquire a lock, or return None if that fails until `deadline`.

    Args:
        request: The lock and its holder-to-be.
        deadline: When to give up. None means never, and ``-inf`` means not to wait at all.
    """
    if deadline == -math.inf:
        return (yield from _acquire(request, deadline, None))
    waiter = yield Join(request.keys, request.token)
    try:
        return (yield from _acquire(request, deadline, waiter))
    finally:
        waiter.leave()


def _acquire(
    request: AcquireRequest, deadline: float | None, waiter: Waiter | None
) -> Flow[Grant | None]:
    while True:
        sent_at = clock.now()
        remaining = math.inf if deadline is None else deadline - sent_at
        timeout = request.reply_timeout
        if remaining < math.inf:
            timeout = timeout or REPLY_TIMEOUT_SECONDS
            if remaining > -math.inf:  # a caller that does not wait at all gets the full timeout
                timeout = min(max(remaining, FINAL_REPLY_TIMEOUT_SECONDS), timeout)
        call = store.acquire(request, waiter.terms if waiter and remaining > 0 else "", timeout)
        request.may_arrive_late = True
        reply = yield call
        request.may_arrive_late = False
        if not isinstance(reply, int):
            raise _other_kind(request, printable(text(reply)))
        took_over, grant = reply < 0, None
        if reply and request.min_replicas:
            reply = yield from _replicate(call, request)
        if reply:
            grant = Grant(abs(reply), sent_at + request.lease, took_over=took_over)
        elif waiter and remaining > 0:
            grant = yield from _await_grant(request, waiter, remaining)
        if grant and clock.now() < grant.deadline:  # else the reply came too late
            return grant
        if grant and remaining <= 0:
            raise TimeoutError(
                f"Redis replied after the lease of lock {request.keys.name!r} had expired, so the "
                "lock was not acquired"
            )
        if remaining <= 0:
            return None


def _other_kind(request: AcquireRequest, held_as: str) -> LockError:
    name = request.keys.name
    error = LockError(
        f"Lock {name!r} is in use as a {held_as}, so it cannot be acquired as a {request.kind}. "
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


def _await_grant(request: AcquireRequest, waiter: Waiter, remaining: float) -> Flow[Grant | None]:
    """Wait for a grant, or until the waiter has to ask again."""
    message = yield Wait(waiter, remaining)
    # The grant is younger than the heartbeat before it. If that was recent, the grant is still
    # valid and a renewal confirms it in time. Otherwise the next call of the script confirms it.
    if message is None or request.min_replicas or not request.is_renewed:
        return None
    if clock.now() - message.since >= request.grant_ttl / 2:
        return None
    deadline = message.since + request.grant_ttl
    return Grant(message.fence_token, deadline, is_confirmed=False)


def cleanup_failed_acquire(request: AcquireRequest, error: BaseException) -> Flow[bool]:
    """Leave nothing behind after an acquisition that failed, and return whether that is sure."""
    if isinstance(error, TimeoutError):
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
    calls = tuple(store.release(lease.keys, lease.token) for lease in leases)
    replies = yield Batch(calls, reply_timeout, apart=True)
    return [
        (lease, reply if isinstance(reply, Exception) else reply == 1)
        for lease, reply in zip(leases, replies, strict=True)
    ]


def renew_all(
    leases: Sequence[Lease], reply_timeout: float
) -> Flow[Iterator[tuple[Lease, float | Exception]]]:
    """Renew leases of one renewer in one round trip.

    Returns:
        Each lease with its remaining seconds, or with the error reply of Redis for its bucket.
    """
    by_bucket: dict[str, list[Lease]] = {}
    for lease in leases:
        by_bucket.setdefault(lease.keys.index, []).append(lease)
    groups = [
        group[start : start + MAX_RENEWALS_PER_CALL]
        for group in by_bucket.values()
        for start in range(0, len(group), MAX_RENEWALS_PER_CALL)
    ]
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
    # Pairs are made one at a time: ten thousand at once would start a garbage collection.
    results = chain.from_iterable(map(_renewals, groups, replies, [too_few] * len(groups)))
    return zip(chain.from_iterable(groups), results, strict=True)


def _renewals(
    group: Sequence[Lease], reply: str | bytes | Exception, too_few: Exception | None
) -> Iterable[float | Exception]:
    if isinstance(reply, Exception):
        return [reply] * len(group)
    ttls = store.ttls(reply)
    return [ttl and too_few for ttl in ttls] if too_few else ttls


def force_release(keys: LockKeys, token: str | None) -> Flow[tuple[str, ...]]:
    """Release a lock for all holders, or for the one with `token`, and return their tokens."""
    released: list[Any] = yield store.force_release(keys, token)
    return tuple(text(each) for each in released)
