"""Read the locks that are held: one, several, a page of them, or all.

The server serves no other client while it runs a script, so each round trip reads a limited
number of locks.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TypeAlias, TypeVar

from redis.exceptions import ClusterCrossSlotError, ResponseError

from ..conf import conf
from ..identity import read_info
from ..keys import BUCKETS, Keys, LockKeys
from ..lua import NAMES, PAGE, QUEUE, ROWS
from ..names import check_name, could_match, matcher
from ..snapshots import Holding, LockInfo, Page, Waiter
from ..text import printable
from .operations import Batch, Call, Flow
from .parsing import moment, number, pairs, parse_all, parse_holder, parse_reply, seconds
from .store import REPLY_TIMEOUT_SECONDS

T = TypeVar("T")

MAX_ROWS = 200
"""The locks that one round trip reads at most."""

MAX_NAMES = 2000
"""The names that one round trip reads at most."""

IndexEntry: TypeAlias = tuple[float, int, str]
"""When the last lease of a lock expires (ms), its bucket and its name. Pages have this order."""

Found: TypeAlias = tuple[int, list[str], list[LockInfo] | None]
"""How many locks there are, the names from `start` to `stop`, and these locks, or None if they are
still to be read."""


def get(keys: Keys, name: str, reply_timeout: float | None = None) -> Flow[LockInfo | None]:
    """Return a snapshot of a lock, or None if it has no holder and no waiter."""
    reply = yield lock_rows([keys.of(name)], reply_timeout)
    infos = _lock_infos(*parse_reply(reply))
    return infos[0] if infos else None


def is_held_by(
    keys: Keys, name: str, token: str, reply_timeout: float | None = None
) -> Flow[bool]:
    """Return whether a token holds a lock."""
    info = yield from get(keys, name, reply_timeout)
    return bool(info and any(holding.token == token for holding in info.holders))


def get_many(keys: Keys, names: Sequence[str]) -> Flow[list[LockInfo]]:
    """Return snapshots of several locks, in no order. A lock that is free is left out."""
    return (yield from _across_buckets(keys, partial(_get_many, names=names)))


def count(keys: Keys) -> Flow[int]:
    """Return how many locks are held."""
    total, _, _ = yield from _across_buckets(keys, partial(_first, start=0, stop=0))
    return total


def page(keys: Keys, pattern: str | None, start: int, stop: int) -> Flow[Page]:
    """Return the locks from `start` to `stop` whose names match, sorted by when they expire.

    This takes one round trip if no pattern is given, `stop` is at most 2,000 and the page has at
    most 200 locks. With a pattern it reads all names, because the result has their number.
    """
    if pattern is not None and not could_match(pattern):
        return Page((), 0)

    def read(keys: Keys) -> Flow[Page]:
        in_order = _first if pattern is None and stop <= MAX_NAMES else partial(_matching, pattern)
        total, names, infos = yield from in_order(keys, start, stop)
        if infos is None:
            infos = yield from _get_many(keys, names)
            order = {name: place for place, name in enumerate(names)}
            infos.sort(key=lambda info: order[info.name])
        return Page(tuple(infos), total)

    return (yield from _across_buckets(keys, read))


def queue(keys: Keys, name: str, limit: int) -> Flow[tuple[Waiter, ...]]:
    """Return the waiters of a lock, the first in the queue first."""
    lock = keys.of(name)
    wanted = (lock.queue, lock.waiting, lock.inboxes, lock.history)
    reply = yield Call(QUEUE, wanted, (limit, conf.history), limit=REPLY_TIMEOUT_SECONDS)
    now, members = parse_reply(reply)
    return tuple(parse_all(_waiter, members, int(now)))


class LockStream:
    """Reads all held locks in parts, each lock once and in no order.

    The first part is the locks that expire first. A scan finds the others. A lock that is held
    from the start to the end is always found.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._cursors: dict[int, str] | None = None
        self._names: list[str] = []
        self._seen: set[str] = set()

    @property
    def is_done(self) -> bool:
        return self._cursors == {} and not self._names

    def read(self) -> Flow[list[LockInfo]]:
        """Read the next locks, at most `MAX_ROWS`. Until `is_done`, there may be more."""
        return (yield from _across_buckets(self._keys, self._read))

    def _read(self, keys: Keys) -> Flow[list[LockInfo]]:
        if self._cursors is None:
            total, names, infos = yield from _first(keys, 0, MAX_ROWS)
            self._keys = keys  # as it worked
            is_complete = total <= len(names)
            self._cursors = {} if is_complete else dict.fromkeys(range(BUCKETS), "0")
            self._seen.update(names)
            return (yield from _get_many(keys, names)) if infos is None else infos
        if not self._names:
            entries = yield from _scan(keys, self._cursors)
            self._names = list({name for _, _, name in entries} - self._seen)
            self._seen.update(self._names)
        names, self._names = self._names[:MAX_ROWS], self._names[MAX_ROWS:]
        return (yield from _get_many(keys, names))


def _across_buckets(keys: Keys, read: Callable[[Keys], Flow[T]]) -> Flow[T]:
    """Read several buckets in a call. If the server refuses that, read one bucket in each.

    A server of a Cluster allows one slot in a call, even if the client does not know the Cluster.
    """
    try:
        return (yield from read(keys))
    except ResponseError as error:
        # Before redis-py 6 only the client of a Cluster knows the class.
        is_refused = isinstance(error, ClusterCrossSlotError) or str(error).startswith("CROSSSLOT")
        if keys.has_nodes or not is_refused:
            raise
    return (yield from read(replace(keys, has_nodes=True)))


def _first(keys: Keys, start: int, stop: int) -> Flow[Found]:
    """Read the held locks that expire first."""
    if not keys.has_nodes:
        buckets = chain.from_iterable(map(keys.inspect, range(BUCKETS)))
        with_rows = stop - start <= MAX_ROWS
        args = (start, stop, int(with_rows), conf.history)
        reply = yield Call(PAGE, tuple(buckets), args, limit=REPLY_TIMEOUT_SECONDS)
        now, total, flat, rows = parse_reply(reply)
        return total, [*pairs(flat)], _lock_infos(now, rows) if with_rows else None

    total = 0
    entries: list[IndexEntry] = []
    for some in _in_parts(range(BUCKETS), MAX_NAMES // max(stop, 1) or 1):
        args = (0, stop, 0, conf.history)
        calls = [Call(PAGE, keys.inspect(bucket), args) for bucket in some]
        replies = yield Batch(tuple(calls), REPLY_TIMEOUT_SECONDS)
        for bucket, (_, held, flat, _) in zip(some, map(parse_reply, replies), strict=True):
            total += held
            entries += _entries(bucket, flat)
    return total, [name for _, _, name in sorted(entries)[start:stop]], None


def _matching(pattern: str | None, keys: Keys, start: int, stop: int) -> Flow[Found]:
    """Read the names of the held locks that match, and expire first."""
    matches, cursors = matcher(pattern), dict.fromkeys(range(BUCKETS), "0")
    seen: set[str] = set()
    first: list[IndexEntry] = []
    while cursors:
        entries = yield from _scan(keys, cursors)
        found = {name: (at, bucket, name) for at, bucket, name in entries if matches(name)}
        first += [found[name] for name in found.keys() - seen]
        seen |= found.keys()
        if len(first) > 2 * stop + MAX_NAMES:  # keep no more than needed, but sort seldom
            first = sorted(first)[:stop]
    return len(seen), [name for _, _, name in sorted(first)[start:stop]], None


def _scan(keys: Keys, cursors: dict[int, str]) -> Flow[list[IndexEntry]]:
    """Scan the next names of the buckets in one round trip, and move the cursors on. A bucket that
    has no more names is removed from them. A name can be found twice."""
    buckets = [*cursors]
    calls = []
    for some in _in_parts(buckets, 1 if keys.has_nodes else BUCKETS):
        wanted = tuple(chain.from_iterable(map(keys.history, some)))
        at = (cursors[bucket] for bucket in some)
        calls.append(Call(NAMES, wanted, (MAX_NAMES // len(buckets), *at, conf.history)))
    replies = yield Batch(tuple(calls), REPLY_TIMEOUT_SECONDS)
    entries: list[IndexEntry] = []
    scanned = chain.from_iterable(map(parse_reply, replies))
    for bucket, (cursor, flat) in zip(buckets, scanned, strict=True):
        entries += _entries(bucket, flat)
        cursors[bucket] = cursor
        if cursor == "0":
            del cursors[bucket]
    return entries


def _entries(bucket: int, flat: Iterable[str]) -> list[IndexEntry]:
    return [(float(expires), bucket, name) for name, expires in pairs(flat).items()]


def _get_many(keys: Keys, names: Sequence[str]) -> Flow[list[LockInfo]]:
    infos: list[LockInfo] = []
    for some in _in_parts(list(map(keys.of, names)), MAX_ROWS):
        by_bucket: dict[int, list[LockKeys]] = {}
        for lock in some:
            by_bucket.setdefault(lock.bucket if keys.has_nodes else 0, []).append(lock)
        replies = yield Batch(tuple(map(lock_rows, by_bucket.values())), REPLY_TIMEOUT_SECONDS)
        infos += [info for reply in replies for info in _lock_infos(*parse_reply(reply))]
    return infos


def _in_parts(whole: Sequence[T], size: int) -> list[Sequence[T]]:
    return [whole[at : at + size] for at in range(0, len(whole), size)]


def lock_rows(locks: Sequence[LockKeys], reply_timeout: float | None = None) -> Call:
    """Return the call that reads locks of one bucket, or of one server."""
    keys = [lock.lock for lock in locks] + [lock.waiting for lock in locks]
    args: tuple[str | int, ...] = (*[lock.name for lock in locks], conf.history)
    return Call(ROWS, (*keys, locks[0].history), args, limit=reply_timeout)


def _lock_infos(now: str, rows: Iterable[tuple[str, int, Iterable[str]]]) -> list[LockInfo]:
    return parse_all(_lock_info, rows, int(now))


def _lock_info(name: str, waiters: int, flat: Iterable[str], now: int) -> LockInfo | None:
    """Parse a row. Return None if the lock has no holder and no waiter."""
    fields = pairs(flat)
    records = [(field[2:], text) for field, text in fields.items() if field.startswith("h:")]
    holders = parse_all(_holding, records, now)
    if not (holders or waiters):
        return None
    state = "waiting"
    if holders:
        state = "held" if any(holding.timeout for holding in holders) else "cooldown"
    return LockInfo(
        name=check_name(name),
        kind=printable(fields.get("kind", "")),
        capacity=number(fields.get("capacity", "0")),
        state=state,
        waiters=waiters,
        holders=tuple(sorted(holders, key=lambda holding: holding.fence_token)),
    )


def _holding(token: str, record: str, now: int) -> Holding | None:
    """Parse a holder. Return None if its lease has expired."""
    parsed = parse_holder(record)
    if parsed.expires <= now:
        return None
    info = read_info(parsed.info)
    return Holding(
        token=token,
        fence_token=parsed.fence_token,
        weight=parsed.weight,
        timeout=seconds(parsed.lease),
        waited=seconds(parsed.waited),
        acquired_at=moment(parsed.acquired),
        expires_at=moment(parsed.expires),
        ttl=(parsed.expires - now) / 1000,
        holder=info.holder,
        metadata=info.metadata,
        renewed=info.renewed,
        renews_later=info.renews_later,
    )


def _waiter(arrived: str, record: str, now: int) -> Waiter:
    _, _, _, _, weight, _, lease, _, text = record.split(" ", 8)
    since = float(arrived) / 1000
    info = read_info(text)
    return Waiter(
        since=moment(round(since)),
        waited=max(now - since, 0) / 1000,
        weight=number(weight),
        timeout=seconds(number(lease)),
        holder=info.holder,
        metadata=info.metadata,
    )
