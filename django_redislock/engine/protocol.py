"""What to do, as generators of operations. `drivers` does it, in either colour.

The lock is a weighted FIFO semaphore with leases. Taking turns follows the
ticket lock of Mellor-Crummey and Scott (1991), with the hand-over inside the
release; leases follow Gray and Cheriton (1989).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal, NamedTuple

from redis.exceptions import ConnectionError, RedisError, TimeoutError

from .. import clock
from ..conf import conf
from ..exceptions import LockError
from ..keys import LockKeys
from ..lua import ACQUIRE, FENCE, FORCE, RELEASE, RENEW
from ..text import printable
from .lease import Lease
from .operations import (
    CLEANUP_TIMEOUT_SECONDS,
    REPLICA_WAIT_SECONDS,
    Batch,
    BlockingPop,
    Call,
    Flow,
    Sleep,
)
from .parsing import number, parse_or_none
from .runners import text
from .transport import POLL_INTERVAL_SECONDS

SLICE = 0.5
"""Seconds for which a waiter sits in one blocking pop before it shows life again."""

ALIVE = 1.75
"""Seconds after which a waiter that showed no life is passed over."""

CLAIM = 2.0
"""Seconds that a grant is worth until its waiter confirms it. More than `ALIVE`: when a grant to
a dead waiter runs out, all that died with it, or a moment later, are known to be dead."""

PATIENCE = 5.0
"""Seconds that an answer may be late before its connection counts as dead."""

GRACE = 0.5
"""Seconds that the answer to what is asked at the very end of a wait may take."""

RENEWED_AT_ONCE = 100
"""Locks that one call renews: more would hold up whatever else Redis has to do."""

Mode = Literal["renew", "set"]


@dataclass(slots=True)
class Want:
    """What one acquisition asks for."""

    keys: LockKeys
    token: str = field(repr=False)
    kind: str
    capacity: int
    weight: int
    lease: float
    info: str

    renewed: bool
    """Whether a renewal will confirm a grant, so that the waiter need not."""

    patience: float | None = None
    """Seconds that any answer may be late; None: as the client allows, or `PATIENCE`."""

    predecessor: str = field(default="", repr=False)
    """The token whose holding it takes over, if there is one."""

    min_replicas: int = 0
    """How many replicas must have it before it counts as acquired."""

    unanswered: bool = field(default=False, compare=False)
    """Whether the request that was sent last may still get to Redis."""

    @property
    def claim(self) -> float:
        return min(CLAIM, self.lease)


class Granted(NamedTuple):
    fence_token: int
    deadline: float
    """On the holder's clock."""

    confirmed: bool = True
    """Whether the lease runs in full, and not only for the claim."""

    took_over: bool = False
    """Whether a predecessor gave way."""


def acquire(want: Want, until: float | None) -> Flow[Granted | None]:
    """Hold it, or None if the turn did not come by `until` (None: wait for ever)."""
    while True:
        asked = clock.now()
        left = math.inf if until is None else until - asked
        granted = yield from _claim(want, left, asked)
        if not granted and left > 0:
            granted = yield from _wait_turn(want, left, asked)
        if granted and clock.now() < granted.deadline:  # else the answer came too late
            return granted
        if granted and left <= 0:
            raise TimeoutError(
                f"Redis replied after the lease of lock {want.keys.name!r} had expired, so the "
                "lock was not acquired"
            )
        if left <= 0:
            return None


def _claim(want: Want, left: float, asked: float) -> Flow[Granted | None]:
    keys, lease = want.keys, want.lease
    limits = (want.kind, want.capacity, want.weight, ms(lease), ms(want.claim))
    alive = ms(ALIVE) if left > 0 else 0
    args = (*limits, keys.name, want.token, alive, want.predecessor, want.info, conf.history)
    call = Call(ACQUIRE, keys.all, args, limit=_limit(left, want.patience))
    want.unanswered = True
    fence = yield call
    want.unanswered = False
    if not isinstance(fence, int):
        raise _other_kind(want, printable(text(fence)))
    took_over = fence < 0
    if fence and want.min_replicas:
        fence = yield from _replicated(call, want)
    return Granted(abs(fence), asked + lease, took_over=took_over) if fence else None


def _other_kind(want: Want, held_as: str) -> LockError:
    name = want.keys.name
    error = LockError(
        f"Lock {name!r} is in use as a {held_as}, so it cannot be acquired as a {want.kind}. "
        "Use another name.",
        lock_name=name,
    )
    error.held_as = held_as
    return error


def _replicated(call: Call, want: Want) -> Flow[int]:
    """Ask once more what was answered by yes, and wait for as many replicas as are wanted to have
    it: who is not let in has nothing to wait for. Answers the fencing token that they have, which
    is another one where the data were lost meanwhile, or the key is with another node now; 0 if
    it is no longer held."""
    until = clock.now() + REPLICA_WAIT_SECONDS
    while True:
        limit = None if call.limit is None else call.limit + REPLICA_WAIT_SECONDS
        fence, replicas = yield Batch((call,), limit, want.min_replicas)
        if not (isinstance(fence, int) and fence):
            return 0
        if replicas >= want.min_replicas:
            return fence
        if clock.now() >= until:  # not so where the lock has just moved to another node
            raise _too_few(want.keys.name, "acquired", replicas, want.min_replicas)
        yield Sleep(POLL_INTERVAL_SECONDS)


def _too_few(name: str, done: str, replicas: int, wanted: int) -> ConnectionError:
    return ConnectionError(
        f"Lock {name!r} was not {done}: {replicas} of {wanted} replica(s) confirmed it within "
        f"{REPLICA_WAIT_SECONDS:g} s (min_replicas={wanted})"
    )


def _limit(left: float, patience: float | None) -> float | None:
    """Seconds to wait for an answer: for who waits for ever, what the client itself allows."""
    if math.isinf(left):
        return patience if left > 0 else patience or PATIENCE
    return min(max(left, GRACE), patience or PATIENCE)


def _wait_turn(want: Want, left: float, asked: float) -> Flow[Granted | None]:
    seconds = min(SLICE, left)
    limit = seconds + min(max(left - seconds, GRACE), want.patience or PATIENCE)
    try:
        fence = yield BlockingPop(want.keys.grant(want.token), seconds, limit)
    except ConnectionError:
        return None  # asking again tells whether Redis is away, or only the answer was lost
    except TimeoutError:
        if limit >= left:
            raise
        return None
    # The grant was made after Redis was last asked. If that was lately, the claim is surely
    # still good and a renewal confirms it in time; else asking again does.
    fresh = clock.now() - asked < want.claim / 2
    if fence is None or want.min_replicas or not (fresh and want.renewed):
        return None
    given = parse_or_none(number, fence)
    return Granted(given, asked + want.claim, confirmed=False) if given else None


def hold_for(want: Want) -> Flow[Granted | None]:
    """Hold it for somebody else, who will come with the token; None if that failed.
    Nothing renews it, and nobody here is told when it is over."""
    return (yield from _claim(want, -math.inf, clock.now()))


def give_up(want: Want, error: BaseException) -> Flow[bool]:
    """Leave nothing behind after an acquisition that failed; whether that surely worked."""
    if isinstance(error, TimeoutError):
        return False  # Redis hangs: to ask again would hang as well
    with suppress(RedisError):
        released = yield from release(want.keys, want.token, limit=CLEANUP_TIMEOUT_SECONDS)
        return released or not want.unanswered
    return False


def take(lease: Lease, want: Want, until: float | None) -> Flow[bool]:
    """Begin the lease, and say whether its turn came; nothing is left of one that failed."""
    lease.book.reclaim(want.keys.name, want.token)
    try:
        granted = yield from acquire(want, until)
        if granted and not granted.confirmed and not lease.book.can_renew():
            want.renewed = False  # so it confirms the grant itself
            granted = yield from acquire(want, until)
        if granted is None:
            return False
        lease.begin(granted.fence_token, granted.deadline, granted.confirmed)
    except (GeneratorExit, LockError):
        raise
    except BaseException as error:
        lease.end()
        released = False
        try:
            released = yield from give_up(want, error)
        finally:  # a second interrupt or cancellation may end that too
            if not released:
                lease.book.give_back(lease, at_once=isinstance(error, TimeoutError))
        raise
    if lease.over:  # who wanted it was interrupted meanwhile, and looks no more
        yield from drop(lease)
    return not lease.over


def let_go(lease: Lease) -> Flow[bool]:
    """End the lease, and say whether it lasted until now."""
    try:
        lease.end()
        return (
            yield from release(
                lease.keys,
                lease.token,
                at_least_for=lease.at_least_for,
                limit=lease.patience,
                fence_token=lease.fence_token,
            )
        )
    except BaseException:  # an interrupt too, wherever it strikes
        abandon(lease)
        raise


def abandon(lease: Lease, *, in_vain: bool = False) -> None:
    """End the lease, and leave it to the renewal to release it. What was acquired in vain has no
    least time."""
    lease.end()
    if in_vain or not lease.at_least_for:  # else its lease, which is no shorter, runs out
        lease.book.give_back(lease)


def abandon_new(leases: Iterable[Lease]) -> None:
    """Abandon those of the leases that nobody has entered yet."""
    for lease in leases:
        if not (lease.entered or lease.over):
            abandon(lease, in_vain=True)


def pass_on(lease: Lease, heir: Want) -> Flow[bool]:
    """End the lease in favour of the one who comes with `heir.token`, and say whether that one
    has it now: also where the lease was lost and nobody else has it."""
    lease.end()
    try:
        return bool((yield from hold_for(replace(heir, predecessor=lease.token))))
    except BaseException:  # an interrupt too
        abandon(lease)
        raise


def drop(lease: Lease) -> Flow[bool]:
    """Let go of what turned out to be acquired in vain, and so has no least time."""
    lease.at_least_for = 0
    return let_go(lease)


def extend(lease: Lease, seconds: float, *, replace: bool) -> Flow[bool]:
    """Change when the lease ends, and say whether it is still running. What it is to be is
    counted here: to ask for it twice, as a client does that repeats itself, adds nothing."""
    sent = clock.now()
    mode: Mode = "set" if replace else "renew"
    wanted = lease.at_least(seconds) if replace else lease.left(sent) + seconds
    if replace:
        lease.begin_to_set(wanted, sent)
    try:
        left = yield from renew(
            lease.keys,
            lease.token,
            wanted,
            mode,
            limit=lease.patience,
            min_replicas=lease.min_replicas,
        )
    except BaseException:
        if replace:
            lease.may_yet_be_set(wanted)
        raise
    finally:
        if replace:
            lease.end_to_set()
    if left:
        lease.extended(sent + lease.surely(min(left, wanted), sent))
    return left > 0


def release(
    keys: LockKeys,
    token: str,
    *,
    at_least_for: float = 0,
    limit: float | None = None,
    fence_token: int = 0,
) -> Flow[bool]:
    """Whether it was held, and no longer is. It stays taken for `at_least_for` seconds after
    it was acquired. Whose holding had that `fence_token` has lost it if it was not held."""
    args = (keys.name, token, ms(at_least_for), fence_token, conf.history)
    return bool((yield Call(RELEASE, keys.all, args, limit=limit, vital=True)))


def renew(
    keys: LockKeys,
    token: str,
    seconds: float,
    mode: Mode,
    *,
    limit: float | None = None,
    min_replicas: int = 0,
) -> Flow[float]:
    """The seconds that are left of the lease now, 0 if it is not held."""
    call = _renewing([keys], mode, [(token, seconds)])
    answer, *replicas = yield Batch((call,), limit, min_replicas)
    [left] = _lefts(answer)
    if left and replicas and replicas[0] < min_replicas:
        raise _too_few(keys.name, "extended", replicas[0], min_replicas)
    return left


def raise_fence(lease: Lease, fence_token: int) -> Flow[bool]:
    """Give a greater fencing token to a lease, and say whether it is still running."""
    keys = lease.keys
    args = (keys.name, lease.token, fence_token, conf.history)
    named = keys.index, keys.lock, keys.history
    raised = yield Call(FENCE, named, args, limit=lease.patience)
    if raised:
        lease.fence_token = fence_token
    return bool(raised)


def release_all(
    leases: Sequence[Lease], limit: float
) -> Flow[list[tuple[Lease, bool | Exception]]]:
    """Release leases of one server in one round trip, each with its verdict as `release`'s, or
    with the error that keeps it from being released now."""
    calls = tuple(
        Call(RELEASE, lease.keys.all, (lease.keys.name, lease.token, 0, 0, conf.history))
        for lease in leases
    )
    answers = yield Batch(calls, limit, apart=True)
    return [
        (lease, answer if isinstance(answer, Exception) else answer == 1)
        for lease, answer in zip(leases, answers, strict=True)
    ]


def renew_all(
    leases: Sequence[Lease], limit: float
) -> Flow[Iterator[tuple[Lease, float | Exception]]]:
    """Renew leases of one book in one round trip, each with its verdict as `renew`'s, or with the
    error that keeps it from being known: such as a bucket's whose keys were overwritten, which is
    none of the other buckets'."""
    by_index: dict[str, list[Lease]] = {}
    for lease in leases:
        by_index.setdefault(lease.keys.index, []).append(lease)
    groups = [
        of_one[start : start + RENEWED_AT_ONCE]
        for of_one in by_index.values()
        for start in range(0, len(of_one), RENEWED_AT_ONCE)
    ]
    wanted = leases[0].min_replicas
    answers = yield Batch(tuple(map(_renewal, groups)), limit, wanted, apart=True)
    too_few = None
    if wanted and (confirmed := answers.pop()) < wanted:
        too_few = ConnectionError(f"{confirmed} of {wanted} replica(s) confirmed the renewal")
    verdicts = [
        verdict
        for of_one, answer in zip(groups, answers, strict=True)
        for verdict in _verdicts(answer, len(of_one), too_few)
    ]
    # A pair at a time: ten thousand at once would have Python look for garbage.
    return zip(chain.from_iterable(groups), verdicts, strict=True)


def _verdicts(
    answer: str | bytes | Exception, count: int, too_few: Exception | None
) -> Sequence[float | Exception]:
    if isinstance(answer, Exception):
        return [answer] * count
    lefts = _lefts(answer)
    return [left and too_few for left in lefts] if too_few else lefts


def _lefts(answer: str | bytes) -> list[float]:
    """The seconds that a renewal leaves of each lease."""
    return [int(ms) / 1000 for ms in answer.split()]


def _renewal(leases: Sequence[Lease]) -> Call:
    wanted = [(lease.token, lease.at_least(lease.seconds)) for lease in leases]
    return _renewing([lease.keys for lease in leases], "renew", wanted)


def _renewing(locks: Sequence[LockKeys], mode: Mode, wanted: Sequence[tuple[str, float]]) -> Call:
    """Locks of one bucket, of each the token and how long its lease is to be."""
    first = locks[0]
    keys = (first.index, first.locks, *[each.lock for each in locks], first.history)
    leases = " ".join([f"{token} {seconds * 1000:.0f}" for token, seconds in wanted])
    return Call(RENEW, keys, (mode, leases, conf.history))


def force_release(keys: LockKeys, token: str | None) -> Flow[tuple[str, ...]]:
    """The tokens of those who were released: all who held it, or `token`'s holder only."""
    args = (keys.name, "" if token is None else f"h:{token}", conf.history)
    # With a limit, so that no client repeats it: by the second time the next may hold it.
    gone: list[Any] = yield Call(FORCE, keys.all, args, limit=PATIENCE, vital=True, once=True)
    return tuple(text(token) for token in gone)


def ms(seconds: float) -> int:
    return round(seconds * 1000)
