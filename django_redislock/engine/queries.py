"""Read the locks that are held: one, several, a page of them, or all.

The server serves no other client while it runs a script, so each round trip reads a limited
number of locks.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from ..conf import conf
from ..identity import parse_payload
from ..keys import Keys, LockKeys
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

FIRST_CURSOR = "0"
"""The cursor at the start of `_read_names()`. At the end it is the same."""

IndexEntry: TypeAlias = tuple[float, str]
"""When the last lease of a lock expires (ms), and its name. Pages have this order."""


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
        locks = [keys.of(name) for name in names[start : start + MAX_ROWS]]
        reply = yield lock_rows(locks, REPLY_TIMEOUT_SECONDS)
        [parsed] = parse_replies([reply])
        with valid_reply():
            infos |= _lock_infos(locks, *parsed)
    return infos


def count(keys: Keys) -> Flow[int]:
    """Return how many locks are held."""
    names = yield from _read_names(keys, FIRST_CURSOR, 0, is_sorted=True)
    return names.total


def page(keys: Keys, pattern: str | None, start: int, stop: int) -> Flow[Page]:
    """Return the locks from `start` to `stop` whose names match, sorted by when they expire.

    With a pattern it reads all names, because the result has their number. Without one it reads
    the names that expire first.
    """
    if pattern is not None and not could_match(pattern):
        return Page((), 0)
    if pattern is None:
        total, entries = yield from _first_names(keys, stop)
    else:
        entries = yield from _matching_names(keys, matcher(pattern))
        total = len(entries)
    names = [name for _, name in entries[start:stop]]
    infos = yield from get_many(keys, names)
    return Page(tuple([infos[name] for name in names if name in infos]), total)


def _first_names(keys: Keys, stop: int) -> Flow[tuple[int, list[IndexEntry]]]:
    """Return how many locks are held, and the `stop` of them that expire first."""
    entries: list[IndexEntry] = []
    seen: set[str] = set()
    cursor = FIRST_CURSOR
    while True:
        limit = min(MAX_NAMES, stop - len(entries))
        names = yield from _read_names(keys, cursor, limit, is_sorted=True)
        entries += [entry for entry in names.entries if entry[1] not in seen]
        seen.update(name for _, name in names.entries)
        cursor = names.cursor
        if cursor == FIRST_CURSOR or len(entries) >= stop:
            return names.total, entries


def _matching_names(keys: Keys, matches: Callable[[str], bool]) -> Flow[list[IndexEntry]]:
    """Return all names that match, sorted by when they expire."""
    found: dict[str, IndexEntry] = {}
    cursor = FIRST_CURSOR
    while True:
        names = yield from _read_names(keys, cursor, MAX_NAMES)
        for entry in names.entries:
            if matches(entry[1]):
                found.setdefault(entry[1], entry)
        cursor = names.cursor
        if cursor == FIRST_CURSOR:
            return sorted(found.values())


def queue(keys: Keys, name: str, limit: int) -> Flow[tuple[Waiter, ...]]:
    """Return the waiters of a lock, the first in the queue first."""
    reply = yield _queue_rows(keys, name, limit)
    return _queue(reply)


def queues(keys: Keys, names: Sequence[str], limit: int) -> Flow[dict[str, tuple[Waiter, ...]]]:
    """Return the first waiters of several locks by name, in one round trip."""
    calls = tuple(_queue_rows(keys, name, limit) for name in names)
    if not calls:
        return {}
    replies = yield Batch(calls, limit=REPLY_TIMEOUT_SECONDS)
    return dict(zip(names, map(_queue, replies), strict=True))


def _queue_rows(keys: Keys, name: str, limit: int) -> Call:
    lock = keys.of(name)
    wanted = (lock.queue, lock.waiting, lock.inboxes, lock.history)
    return Call(QUEUE, wanted, (limit, conf.history), limit=REPLY_TIMEOUT_SECONDS)


def _queue(reply: Any) -> tuple[Waiter, ...]:
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
        self._cursor: str | None = FIRST_CURSOR
        self._names: list[str] = []
        self._seen: set[str] = set()

    @property
    def is_done(self) -> bool:
        return self._cursor is None and not self._names

    def read(self) -> Flow[Iterable[LockInfo]]:
        """Read the next locks, at most `MAX_ROWS`. Until `is_done`, there may be more."""
        if not self._names and self._cursor is not None:
            names = yield from _read_names(self._keys, self._cursor, MAX_NAMES)
            self._cursor = None if names.cursor == FIRST_CURSOR else names.cursor
            self._names = list({name for _, name in names.entries} - self._seen)
            self._seen.update(self._names)
        part = self._names[:MAX_ROWS]
        self._names = self._names[MAX_ROWS:]
        infos = yield from get_many(self._keys, part)
        return infos.values()


class _Names(NamedTuple):
    """A part of the index."""

    cursor: str
    """The cursor of the next part, or `FIRST_CURSOR` at the end."""

    total: int
    """How many locks are held."""

    entries: list[IndexEntry]
    """The names. A name can also be in another part."""


def _read_names(keys: Keys, cursor: str, limit: int, *, is_sorted: bool = False) -> Flow[_Names]:
    """Read about `limit` names in one round trip, in order if `is_sorted`."""
    order = "sorted" if is_sorted else "scan"
    args = (order, limit, cursor, conf.history)
    reply = yield Call(NAMES, keys.all, args, limit=REPLY_TIMEOUT_SECONDS)
    [parsed] = parse_replies([reply])
    with valid_reply():
        following, total, names = parsed
        entries = [(float(expires), str(name)) for name, expires in names]
        return _Names(str(following), int(total), entries)


def lock_rows(locks: Sequence[LockKeys], reply_timeout: float | None = None) -> Call:
    """Return the call that reads some locks."""
    of_locks = [key for lock in locks for key in (lock.lock, lock.queue, lock.waiting)]
    keys = (*of_locks, locks[0].locks, locks[0].inboxes, locks[0].history)
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


def _waiter(arrived: str, record: str, token: str, now: int) -> Waiter:
    _, _, _, weight, _, lease, _, text = record.split(" ", 7)
    since = float(arrived) / 1000
    payload = parse_payload(text)
    return Waiter(
        since=moment(round(since)),
        waited=max(now - since, 0) / 1000,
        weight=number(weight),
        timeout=seconds(number(lease)),
        holder=payload.holder,
        metadata=payload.metadata,
        stored_token=token,
    )
