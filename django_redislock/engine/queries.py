"""Read the locks that are held: one, several, a page of them, or all.

The server serves no other client while it runs a script, so each round trip reads a limited
number of locks.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TypeAlias

from ..conf import conf
from ..identity import parse_payload
from ..keys import BUCKETS, Keys, LockKeys
from ..lua import NAMES, QUEUE, ROWS
from ..names import check_name, could_match, matcher
from ..snapshots import Holding, LockInfo, Page, Waiter
from ..text import printable
from ..tokens import token_of
from .operations import Batch, Call, Flow
from .parsing import (
    moment,
    number,
    pairs,
    parse_all,
    parse_holder,
    parse_or_none,
    parse_replies,
    seconds,
    valid_reply,
)
from .timing import GRANT_TTL_SECONDS, REPLY_TIMEOUT_SECONDS

MAX_ROWS = 200
"""The locks that one round trip reads at most."""

MAX_NAMES = 2000
"""The names that one round trip reads, and a few more."""

GRANT_TTL_MS = round(GRANT_TTL_SECONDS * 1000)

CLOCK_TOLERANCE_MS = 1000
"""A lease may seem to be longer than its timeout by this much."""

FIRST_CURSORS = dict.fromkeys(range(BUCKETS), "0")
"""The cursor of each bucket at the start of `_read_names()`."""

IndexEntry: TypeAlias = tuple[float, int, str]
"""When the last lease of a lock expires (ms), its bucket and its name. Pages have this order."""


def get(keys: Keys, name: str, reply_timeout: float | None = None) -> Flow[LockInfo | None]:
    """Return a snapshot of a lock, or None if it has no holder and no waiter."""
    locks = [keys.of(name)]
    reply = yield lock_rows(locks, reply_timeout)
    [parsed] = parse_replies([reply])
    with valid_reply():
        return _lock_infos(locks, *parsed).get(name)


def get_many(keys: Keys, names: Sequence[str]) -> Flow[dict[str, LockInfo]]:
    """Return snapshots of several locks by name. A lock that is free is left out."""
    infos: dict[str, LockInfo] = {}
    for start in range(0, len(names), MAX_ROWS):
        by_bucket: dict[int, list[LockKeys]] = {}
        for lock in map(keys.of, names[start : start + MAX_ROWS]):
            by_bucket.setdefault(lock.bucket, []).append(lock)
        replies = yield Batch(tuple(map(lock_rows, by_bucket.values())), REPLY_TIMEOUT_SECONDS)
        with valid_reply():
            for locks, parsed in zip(by_bucket.values(), parse_replies(replies), strict=True):
                infos |= _lock_infos(locks, *parsed)
    return infos


def count(keys: Keys) -> Flow[int]:
    """Return how many locks are held."""
    total, _ = yield from _read_names(keys, FIRST_CURSORS.copy(), 0, is_sorted=True)
    return total


def page(keys: Keys, pattern: str | None, start: int, stop: int) -> Flow[Page]:
    """Return the locks from `start` to `stop` whose names match, sorted by when they expire.

    With a pattern it reads all names, because the result has their number. Without one it reads
    the names that expire first, from all buckets, until no bucket can have one before `stop`.
    """
    if pattern is not None and not could_match(pattern):
        return Page((), 0)
    matches = None if pattern is None else matcher(pattern)
    is_sorted = matches is None
    # Names that are spread unevenly over the buckets take another round trip.
    limit = min(MAX_NAMES, max(MAX_ROWS, 3 * stop)) if is_sorted else MAX_NAMES
    cursors, total = FIRST_CURSORS.copy(), 0
    first: list[IndexEntry] = []
    seen: set[str] = set()
    while cursors:
        held, entries = yield from _read_names(keys, cursors, limit, is_sorted=is_sorted)
        found = {entry[-1]: entry for entry in entries if not matches or matches(entry[-1])}
        first = sorted(first + [found[name] for name in found.keys() - seen])[:stop]
        seen |= found.keys()
        total = max(total, held) if is_sorted else len(seen)
        if is_sorted and len(first) == stop:
            last = {bucket: (expires, bucket, name) for expires, bucket, name in entries}
            for bucket in [*cursors]:
                if not stop or bucket not in last or last[bucket] > first[-1]:
                    del cursors[bucket]
    names = [name for _, _, name in first[start:]]
    infos = yield from get_many(keys, names)
    return Page(tuple([infos[name] for name in names if name in infos]), total)


def queue(keys: Keys, name: str, limit: int) -> Flow[tuple[Waiter, ...]]:
    """Return the waiters of a lock, the first in the queue first."""
    lock = keys.of(name)
    wanted = (lock.queue, lock.waiting, lock.inboxes, lock.history)
    reply = yield Call(QUEUE, wanted, (limit, conf.history), limit=REPLY_TIMEOUT_SECONDS)
    [parsed] = parse_replies([reply])
    with valid_reply():
        now, members = parsed
        return tuple(parse_all(_waiter, members, int(now)))


class LockStream:
    """Reads all held locks in parts, each lock once and in no order.

    A lock that is held from the start to the end is always found.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._cursors = FIRST_CURSORS.copy()
        self._names: list[str] = []
        self._seen: set[str] = set()

    @property
    def is_done(self) -> bool:
        return not (self._cursors or self._names)

    def read(self) -> Flow[Iterable[LockInfo]]:
        """Read the next locks, at most `MAX_ROWS`. Until `is_done`, there may be more."""
        if not self._names:
            _, entries = yield from _read_names(self._keys, self._cursors, MAX_NAMES)
            self._names = list({name for _, _, name in entries} - self._seen)
            self._seen.update(self._names)
        names, self._names = self._names[:MAX_ROWS], self._names[MAX_ROWS:]
        infos = yield from get_many(self._keys, names)
        return infos.values()


def _read_names(
    keys: Keys, cursors: dict[int, str], limit: int, *, is_sorted: bool = False
) -> Flow[tuple[int, list[IndexEntry]]]:
    """Read about `limit` names of some buckets in one round trip, and move their cursors on.

    A bucket that has no more names is removed from the cursors. A name can be found twice.

    Returns:
        How many locks of these buckets are held, and the names. If they are sorted, the names of
        each bucket are in order.
    """
    order, of_each = "sorted" if is_sorted else "scan", limit // len(cursors)
    calls = [
        Call(NAMES, keys.of_bucket(bucket), (order, of_each, cursor, conf.history))
        for bucket, cursor in cursors.items()
    ]
    replies = yield Batch(tuple(calls), REPLY_TIMEOUT_SECONDS)
    total = 0
    entries: list[IndexEntry] = []
    parsed = parse_replies(replies)
    with valid_reply():
        for bucket, (cursor, held, names) in zip([*cursors], parsed, strict=True):
            total += int(held)
            entries += [(float(expires), bucket, str(name)) for name, expires in names]
            cursors[bucket] = str(cursor)
            if cursor == "0":
                del cursors[bucket]
    return total, entries


def lock_rows(locks: Sequence[LockKeys], reply_timeout: float | None = None) -> Call:
    """Return the call that reads locks of one bucket."""
    of_locks = [key for lock in locks for key in (lock.lock, lock.queue, lock.waiting)]
    keys = (*of_locks, locks[0].inboxes, locks[0].history)
    return Call(ROWS, keys, (conf.history,), limit=reply_timeout)


def _lock_infos(
    locks: Sequence[LockKeys], now: str, rows: Sequence[tuple[int, float, Iterable[str]]]
) -> dict[str, LockInfo]:
    """Parse the reply to `lock_rows()`. Leave out locks without a holder and a waiter."""
    infos = {
        lock.name: parse_or_none(_lock_info, lock.name, *row, int(now))
        for lock, row in zip(locks, rows, strict=True)
    }
    return {name: info for name, info in infos.items() if info}


def _lock_info(
    name: str, waiters: int, longest_wait: float, flat: Iterable[str], now: int
) -> LockInfo | None:
    """Parse a row. Return None if the lock has no holder and no waiter."""
    fields = pairs(flat)
    records = [(field[2:], text) for field, text in fields.items() if field.startswith("h:")]
    holders = parse_all(_holding, records, now)
    if not (holders or waiters):
        return None
    state = "waiting"
    if holders:
        state = "held" if [each for each in holders if each.timeout] else "cooldown"
    return LockInfo(
        name=check_name(name),
        kind=printable(fields.get("kind", "")),
        capacity=number(fields.get("capacity", "0")),
        state=state,
        waiters=waiters,
        longest_wait=longest_wait / 1000,
        holders=tuple(sorted(holders, key=attrgetter("fence_token"))),
    )


def _holding(stored_token: str, record: str, now: int) -> Holding | None:
    """Parse a holder. Return None if its lease has expired."""
    parsed = parse_holder(record)
    if parsed.expires <= now:
        return None
    payload = parse_payload(parsed.payload)
    # Renewals never shorten a lease, so one that `extend()` has made longer hides them. The clock
    # of another primary may be behind.
    is_hidden = payload.renewed and parsed.expires - now > parsed.lease + CLOCK_TOLERANCE_MS
    return Holding(
        token=token_of(stored_token),
        stored_token=stored_token,
        fence_token=parsed.fence_token,
        weight=parsed.weight,
        timeout=seconds(parsed.lease),
        waited=seconds(parsed.waited),
        acquired_at=moment(parsed.acquired),
        expires_at=moment(parsed.expires),
        ttl=(parsed.expires - now) / 1000,
        holder=payload.holder,
        metadata=payload.metadata,
        renewed=payload.renewed and not is_hidden,
        renews_later=payload.renews_later or is_hidden,
        # Each renewal, also the one that confirms a grant, sets a later end.
        unconfirmed=parsed.expires - parsed.acquired == GRANT_TTL_MS < parsed.lease,
    )


def _waiter(arrived: str, record: str, now: int) -> Waiter:
    _, _, _, _, weight, _, lease, _, text = record.split(" ", 8)
    since = float(arrived) / 1000
    payload = parse_payload(text)
    return Waiter(
        since=moment(round(since)),
        waited=max(now - since, 0) / 1000,
        weight=number(weight),
        timeout=seconds(number(lease)),
        holder=payload.holder,
        metadata=payload.metadata,
    )
