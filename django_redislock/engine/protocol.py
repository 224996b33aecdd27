"""How a lock is acquired, renewed and released, as generators of operations.

`runners` executes them, for sync and async code. A lock is a weighted FIFO semaphore with leases.
The queue follows the ticket lock of Mellor-Crummey and Scott (1991), with the handover inside the
release. Leases follow Gray and Cheriton (1989).
"""

import math
import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
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
from .outages import is_outage, log_outage, outage_pause
from .parsing import text, valid_reply
from .store import AcquireRequest, RenewMode
from .timing import (
    CLEANUP_TIMEOUT_SECONDS,
    FINAL_REPLY_TIMEOUT_SECONDS,
    HEARTBEAT_SECONDS,
    MAX_LOCKS_PER_CALL,
    MAX_MESSAGE_BYTES,
    MAX_WAITERS_PER_HEARTBEAT,
    POLL_INTERVAL_SECONDS,
    REPLICA_WAIT_SECONDS,
    REPLY_TIMEOUT_SECONDS,
)

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


class Grant(NamedTuple):
    """A grant that a waiter received."""

    fence_token: int

    since: float
    """A time before the grant, on the waiter's clock."""


@dataclass(eq=False, slots=True)
class WaitingCaller:
    """One acquisition that may have to wait. `Inbox.join` makes it."""

    inbox: "Inbox"
    keys: LockKeys
    token: str
    ticket: int

    rides_outages: bool = False
    """Whether it continues to wait while the server is away."""

    failures: int = 0
    """How many of its requests in a row failed because the server was away."""

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
            try:
                raise news
            finally:
                del news  # see `run()` of the runners
        return news if isinstance(news, Grant) else None


class Inbox:
    """The inbox of the waiters of one process, or of one event loop, for their grants.

    One heartbeat keeps all waiters of an inbox in their queues. Heartbeats, and requests that
    acquire, carry their epoch: the time (ms) at which they were sent, on the waiter's clock. The
    scripts copy the last epoch into a grant. So a grant is known to be younger than its epoch,
    without a comparison of clocks.

    Args:
        prefix: The prefix of its keys in Redis.
    """

    def __init__(self, prefix: str) -> None:
        self.id = os.urandom(8).hex()
        self.key = f"{prefix}{self.id}"
        self.waiters: dict[int, WaitingCaller] = {}
        self.heartbeat_due = -math.inf
        self.failed_reads = 0
        self._in_turn: deque[WaitingCaller] = deque()
        self.turn: WaitingCaller | None = None
        """The waiter that asks, while waiters ask one after the other."""
        self._turn_ends = -math.inf
        self.outage: dict[str, object] = {}
        """A mark from the first error of an outage until its end. A dictionary, because its
        changes are single steps, which no other thread divides."""
        self._tickets = count(1)
        self._checked = 0

    def join(self, keys: LockKeys, token: str) -> WaitingCaller:
        """Return a new waiter. It stays in `waiters` until it is removed."""
        if not self.waiters:  # its request is a heartbeat, too
            self.heartbeat_due = clock.now() + HEARTBEAT_SECONDS
            if self.outage or self.failed_reads:  # of an earlier wait
                self.read_succeeded()
        waiter = WaitingCaller(self, keys, token, next(self._tickets))
        self.waiters[waiter.ticket] = waiter
        return waiter

    def wait(self, client: Any, waiter: WaitingCaller, seconds: float) -> Any:
        """Wait until a waiter has news, and return a grant, or None if it has to ask again."""
        raise NotImplementedError

    def deliver(self, message: bytes) -> None:
        """Tell a waiter of its grant: "ticket fence epoch", where the epoch is in ms."""
        parts = message[:MAX_MESSAGE_BYTES].split()
        if not (len(parts) == 3 and all(map(bytes.isdigit, parts))):
            return  # another program wrote it
        ticket, fence_token, epoch = map(int, parts)
        waiter = self.waiters.get(ticket)
        if waiter and fence_token:
            waiter.tell(Grant(fence_token, epoch / 1000))

    def tell_all(self, news: Exception | bool) -> None:
        """Tell all waiters of an error, or (True) to ask again."""
        for waiter in list(self.waiters.values()):
            waiter.tell(news)

    # An outage. While the server is away, only the reader tries to reach it, because thousands may
    # wait, and each attempt to connect costs. The first heartbeat that succeeds finds the waiters
    # that have to ask: Redis has lost the queue, has not queued them, or has made them holders.
    # They ask one after the other, in their order.

    def request_failed(self, waiter: WaitingCaller, error: Exception) -> None:
        """Have a waiter ask again a little later, unless a heartbeat finds it in its queue."""
        waiter.failures += 1
        due = clock.now() + outage_pause(waiter.failures)
        self.heartbeat_due = min(self.heartbeat_due, due)
        self._stop_turns()
        self._log_outage(waiter, error)

    def read_failed(self, error: Exception) -> None:
        """Have those ask again that do not wait for the end of an outage."""
        self.failed_reads += 1
        self._checked = 0  # the next heartbeat begins with those that wait the longest
        self._stop_turns()
        for waiter in list(self.waiters.values()):
            if not waiter.rides_outages:
                waiter.tell(True)  # its request shows whether Redis responds
            elif waiter.is_waiting:
                self._log_outage(waiter, error)

    def read_succeeded(self) -> None:
        self.failed_reads = 0
        if self.outage and not any(each.failures for each in list(self.waiters.values())):
            self.outage.clear()

    @property
    def asks_in_turn(self) -> bool:
        """Whether waiters ask again, each after the reply to the one before."""
        return clock.now() < self._turn_ends

    def _next_turn(self) -> None:
        with suppress(IndexError):
            while True:
                waiter = self._in_turn.popleft()
                self.turn, self._turn_ends = waiter, clock.now() + REPLY_TIMEOUT_SECONDS
                waiter.tell(True)
                if waiter.ticket in self.waiters:  # else it has left, perhaps at this moment
                    return
        self.turn, self._turn_ends = None, -math.inf

    def _stop_turns(self) -> None:
        self._in_turn.clear()
        self._next_turn()

    def end_turn(self, waiter: WaitingCaller) -> None:
        """Let the next waiter ask, if it was the turn of this one."""
        if self.turn is waiter:
            self._next_turn()

    def _log_outage(self, waiter: WaitingCaller, error: Exception) -> None:
        mark = object()  # not the error, whose traceback would keep a lock alive
        if self.outage.setdefault("mark", mark) is mark:  # no other thread was first
            log_outage(waiter.keys.name, error, len(self.waiters))

    def heartbeat(self, reply_timeout: float = REPLY_TIMEOUT_SECONDS) -> Flow[None]:
        """Keep the waiters in their queues, and tell those that are in none to ask again."""
        now = clock.now()
        self.heartbeat_due = now + HEARTBEAT_SECONDS
        waiting = [each for each in list(self.waiters.values()) if each.is_waiting]
        if not waiting:
            return
        checked: list[WaitingCaller] = []
        if not self.asks_in_turn:  # else those found here would ask before others that are to ask
            first = self._checked % len(waiting)
            checked = (waiting[first:] + waiting[:first])[:MAX_WAITERS_PER_HEARTBEAT]
            self._checked = first + len(checked)
        tokens: dict[LockKeys, list[str]] = {each.keys: [] for each in waiting}
        for waiter in checked:
            tokens[waiter.keys].append(waiter.token)
        calls = []
        for group in _groups(list(tokens)):
            by_lock = [tokens[lock] for lock in group]
            calls.append(store.heartbeat(group, self.id, int(now * 1000), by_lock))
        replies = yield Batch(tuple(calls), reply_timeout)
        with valid_reply():
            missing = set(" ".join(map(text, replies)).split())
        for waiter in checked:
            if waiter.token not in missing:
                waiter.failures = 0
        to_ask = [waiter for waiter in checked if waiter.token in missing]
        if to_ask:
            self._in_turn = deque(sorted(to_ask, key=lambda each: each.ticket))
            self._next_turn()


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
    is_one_lost = False
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
            acquired = None
            try:
                request.may_arrive_late = True
                reply = yield call
                request.may_arrive_late = is_one_lost
                if not isinstance(reply, int):
                    with valid_reply():
                        held_as = printable(text(reply))
                    raise _refused(request, held_as)
                is_refused, took_over = not reply, reply < 0
                if reply and request.min_replicas:
                    reply = yield from _replicate(call, request)
                if reply:
                    acquired = Acquired(abs(reply), sent_at + request.lease, took_over=took_over)
            except RedisError as error:
                left = math.inf if deadline is None else deadline - clock.now()
                if not (waiter and left > 0 and _rides(request, deadline, error)):
                    raise
                is_one_lost = is_one_lost or not isinstance(error, ResponseError)
                request.may_arrive_late = is_one_lost
                waiter.inbox.request_failed(waiter, error)
                acquired = yield from _await_grant(request, waiter, left)
            else:
                if waiter:
                    waiter.failures = 0
                    waiter.inbox.end_turn(waiter)
                if is_refused and waiter and remaining > 0:
                    request.was_queued = True
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
            waiter.inbox.end_turn(waiter)


def _rides(request: AcquireRequest, deadline: float | None, error: Exception) -> bool:
    """Return whether a caller that waits tries again after an error.

    Without a limit, a caller that was never queued would wait indefinitely for a server whose
    address is wrong, or that never gets its replicas.
    """
    has_end = deadline is not None or request.was_queued
    return request.rides_outages and has_end and is_outage(error)


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
    groups = _groups(leases)
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
    retakes = []
    for lease in leases:
        if lease.retake:  # else another thread has ended the hold
            _prepare(lease, lease.retake)
            retakes.append((lease, lease.retake))
    calls = [store.acquire(retake.request, "", None) for _, retake in retakes]
    replies = yield Batch(tuple(calls), reply_timeout, leases[0].min_replicas, apart=True)
    if leases[0].min_replicas and replies.pop() < leases[0].min_replicas:
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


def _groups(items: Sequence[T]) -> list[Sequence[T]]:
    """Return the items in groups of `MAX_LOCKS_PER_CALL`."""
    starts = range(0, len(items), MAX_LOCKS_PER_CALL)
    return [items[start : start + MAX_LOCKS_PER_CALL] for start in starts]


def force_release(keys: LockKeys, token: str | None) -> Flow[tuple[str, ...]]:
    """Release a lock for all holders, or for those with `token`, and return their tokens.

    `token` can be a stored token. Then at most one holder has it.
    """
    released: list[Any] = yield store.force_release(keys, token)
    with valid_reply():
        return tuple(token_of(text(each)) for each in released)
