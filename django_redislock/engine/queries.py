"""Reading what is held: one lock by name, or all of them, a page of each bucket at a time."""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TypeAlias, TypeVar

from redis.exceptions import ClusterCrossSlotError, ResponseError

from ..conf import conf
from ..identity import read_info
from ..keys import BUCKETS, Keys, LockKeys
from ..lua import INSPECT, NAMES, PAGE, QUEUE, ROWS
from ..names import check_name, could_match, matcher
from ..snapshots import Holding, LockInfo, Page, Waiter
from ..text import printable
from .operations import Batch, Call, Flow
from .parsing import moment, number, ours, pairs, parsed, read_record, seconds

T = TypeVar("T")

MOST = 200
"""Locks that one call tells of at most."""

FIRST_PAGE = 10
"""The same of the first call: each of the next ones answers four times as many as the one
before."""

ROWS_PER_ROUND_TRIP = 200
"""Locks that one round trip reads at most. The server runs all calls of a round trip before it
serves other clients, so this limits how long they wait."""

NAMES_PER_ROUND_TRIP = 2000
"""Names that one round trip reads at most, for the same reason."""

LONGEST = 5.0
"""Seconds to wait for an answer: whoever looks on has other servers to look at."""


@dataclass(slots=True)
class Cursor:
    """How far the reading of one bucket has come."""

    bucket: int
    start: str = "-inf"
    ended: str = ""
    """What the script has to know of those that end just then."""

    limit: int = FIRST_PAGE
    told: "array[int]" = field(default_factory=partial(array, "q"))
    """Hashes of the names so far, in order: a renewal moves a lock ahead of the cursor again. Of
    8 bytes each, where a set of names would take a hundred."""

    def tell(self, name: str) -> bool:
        """Whether it was not told yet."""
        found = hash(name)
        place = bisect_left(self.told, found)
        is_new = self.told[place : place + 1] != array("q", [found])
        if is_new:
            self.told.insert(place, found)
        return is_new


Ends: TypeAlias = dict[str, str]
"""The names of locks, and in ms the ends of their last leases."""

End: TypeAlias = tuple[float, int, str]
"""When the last lease of a lock ends, in ms, its bucket and its name: in that order."""


def get(keys: Keys, name: str, limit: float | None = None) -> Flow[LockInfo | None]:
    infos = _lock_infos(*parsed((yield _rows([keys.of(name)], limit))))
    return infos[0] if infos else None


def holds(keys: Keys, name: str, token: str, limit: float | None = None) -> Flow[bool]:
    """Whether that token holds that lock."""
    info = yield from get(keys, name, limit)
    return bool(info and any(holding.token == token for holding in info.holders))


def count(keys: Keys) -> Flow[int]:
    pages = yield from _in_one_call_or_many(keys, partial(_names, cursors=beginning(""), limit=0))
    return sum(held for held, _ in pages)


def ending_first(keys: Keys, pattern: str | None, start: int, stop: int) -> Flow[Page]:
    """Return the locks from `start` to `stop` whose names match, in the order in which their
    leases end. Take one round trip if no pattern is given and `stop` is small."""
    if pattern is not None and not could_match(pattern):
        return Page((), 0)
    read = partial(_ending_first, pattern=pattern, start=start, stop=stop)
    return (yield from _in_one_call_or_many(keys, read))


def _ending_first(keys: Keys, pattern: str | None, start: int, stop: int) -> Flow[Page]:
    if pattern is not None or stop > MOST or keys.has_nodes:
        return (yield from _first_by_name(keys, pattern, start, stop))
    buckets = tuple(chain.from_iterable(map(keys.inspect, range(BUCKETS))))
    answer = yield Call(PAGE, buckets, (start, stop, conf.history), limit=LONGEST)
    now, total, rows = parsed(answer)
    return Page(tuple(_lock_infos(now, rows)), total)


def _first_by_name(keys: Keys, pattern: str | None, start: int, stop: int) -> Flow[Page]:
    """Read names until the first `stop` are known, or all names if a pattern is given, because
    all that match are counted. Then read the locks."""
    matches, cursors, total = matcher(pattern), beginning(""), 0
    first: list[End] = []
    while cursors:
        limit = NAMES_PER_ROUND_TRIP // len(cursors)
        if pattern is None:  # names are spread evenly over the buckets
            limit = min(limit, stop // BUCKETS * 2 + FIRST_PAGE)
        is_start = not any(cursor.start for cursor in cursors)
        pages = yield from _names(keys, cursors, limit)
        found = [
            (float(end), cursor.bucket, name)
            for cursor, (_, ends) in zip(cursors, pages, strict=True)
            for name, end in ends.items()
            if matches(name) and cursor.tell(name)
        ]
        if pattern is not None:
            total += len(found)
        elif is_start:
            total = sum(held for held, _ in pages)
        first = sorted(first + found)[:stop]
        cursors = [cursor for cursor in cursors if cursor.start]
        if pattern is None and len(first) == stop:
            last = first[-1][:2] if first else (0.0, 0)
            cursors = [each for each in cursors if (float(each.start), each.bucket) < last]
    names = [name for _, _, name in first[start:]]
    infos = yield from _several(keys, names)
    order = {name: place for place, name in enumerate(names)}
    return Page(tuple(sorted(infos, key=lambda info: order[info.name])), total)


def _names(keys: Keys, cursors: Sequence[Cursor], limit: int) -> Flow[list[tuple[int, Ends]]]:
    """Read the next names of some buckets in one round trip. Return of each bucket how many locks
    are held, and the names with the ends of their leases."""
    calls = []
    for some in _in_parts(cursors, 1 if keys.has_nodes else BUCKETS):
        buckets = chain.from_iterable(keys.history(cursor.bucket) for cursor in some)
        pages = chain.from_iterable((cursor.start, cursor.ended) for cursor in some)
        calls.append(Call(NAMES, tuple(buckets), (limit, *pages, conf.history)))
    answers = yield Batch(tuple(calls), LONGEST)
    found = []
    for cursor, page in zip(cursors, chain.from_iterable(map(parsed, answers)), strict=True):
        held, cursor.start, cursor.ended, flat = page
        found.append((held, pairs(flat)))
    return found


def _in_one_call_or_many(keys: Keys, read: Callable[[Keys], Flow[T]]) -> Flow[T]:
    """Read several buckets in each call, or one bucket in each if the server refuses that. A
    server of a Cluster allows one slot in a call, even if its client does not know the Cluster."""
    try:
        return (yield from read(keys))
    except ResponseError as error:
        if keys.has_nodes or not _tells_of_slots(error):
            raise
    return (yield from read(replace(keys, has_nodes=True)))


def _tells_of_slots(error: ResponseError) -> bool:
    # Before redis-py 6 only a Cluster's client knows the class.
    return isinstance(error, ClusterCrossSlotError) or str(error).startswith("CROSSSLOT")


def several(keys: Keys, names: Sequence[str]) -> Flow[list[LockInfo]]:
    """What is known of these locks, in no order."""
    return (yield from _in_one_call_or_many(keys, partial(_several, names=names)))


def _several(keys: Keys, names: Sequence[str]) -> Flow[list[LockInfo]]:
    infos: list[LockInfo] = []
    for some in _in_parts(list(map(keys.of, names)), ROWS_PER_ROUND_TRIP):
        by_bucket: dict[int, list[LockKeys]] = {}
        for each in some:
            by_bucket.setdefault(each.bucket if keys.has_nodes else 0, []).append(each)
        parts = [part for there in by_bucket.values() for part in _in_parts(there, MOST)]
        answers = yield Batch(tuple(map(_rows, parts)), LONGEST)
        infos += [info for answer in answers for info in _lock_infos(*parsed(answer))]
    return infos


def _in_parts(whole: Sequence[T], size: int) -> list[Sequence[T]]:
    return [whole[at : at + size] for at in range(0, len(whole), size)]


def _rows(locks: Sequence[LockKeys], limit: float | None = None) -> Call:
    keys = [each.lock for each in locks] + [each.waiting for each in locks]
    args: tuple[str | int, ...] = (*[each.name for each in locks], conf.history)
    return Call(ROWS, (*keys, locks[0].history), args, limit=limit)


def queue(keys: Keys, name: str, limit: int) -> Flow[tuple[Waiter, ...]]:
    """Who waits for a lock, first to last."""
    of_name = keys.of(name)
    wanted = (of_name.queue, of_name.waiting, of_name.history)
    now, rows = parsed((yield Call(QUEUE, wanted, (limit, conf.history), limit=LONGEST)))
    waiters = [ours(_waiter, since, told, int(now)) for since, told in rows]
    return tuple(waiter for waiter in waiters if waiter)


def beginning(start: str = "-inf") -> list[Cursor]:
    return [Cursor(bucket, start) for bucket in range(BUCKETS)]


def page(keys: Keys, cursors: list[Cursor]) -> Flow[tuple[list[LockInfo], list[Cursor]]]:
    """The next locks of all buckets in one round trip, and the cursors of those that have more."""
    most = ROWS_PER_ROUND_TRIP // len(cursors)
    answers = yield Batch(tuple(_call(keys, cursor, most) for cursor in cursors))
    infos: list[LockInfo] = []
    for cursor, answer in zip(cursors, answers, strict=True):
        now, cursor.start, cursor.ended, rows = parsed(answer)
        infos += [info for info in _lock_infos(now, rows) if cursor.tell(info.name)]
        cursor.limit = min(cursor.limit * 4, MOST)
    return infos, [cursor for cursor in cursors if cursor.start]


def _call(keys: Keys, cursor: Cursor, most: int) -> Call:
    args = (cursor.start, cursor.ended, min(cursor.limit, most), conf.history)
    return Call(INSPECT, keys.inspect(cursor.bucket), args)


def _waiter(arrived: str, record: str, now: int) -> Waiter:
    _, weight, _, lease, _, told = record.split(" ", 5)
    since = float(arrived) / 1000
    said = read_info(told)
    return Waiter(
        since=moment(round(since)),
        waited=max(now - since, 0) / 1000,
        weight=number(weight),
        timeout=seconds(number(lease)),
        holder=said.holder,
        metadata=said.metadata,
    )


def _lock_infos(now: str, rows: Iterable[tuple[str, int, Iterable[str]]]) -> list[LockInfo]:
    at = int(now)
    infos = [ours(_lock_info, *row, at) for row in rows]
    return [info for info in infos if info]


def _lock_info(name: str, waiters: int, flat: Iterable[str], now: int) -> LockInfo | None:
    """None where nobody holds it or waits for it."""
    fields = pairs(flat)
    read = [
        ours(_holding, field[2:], record, now)
        for field, record in fields.items()
        if field.startswith("h:")
    ]
    holders = [holding for holding in read if holding]
    if not (holders or waiters):
        return None
    return LockInfo(
        name=check_name(name),
        kind=printable(fields.get("kind", "")),
        capacity=number(fields.get("capacity", "0")),
        state=_state(holders),
        waiters=waiters,
        holders=tuple(sorted(holders, key=_fence)),
    )


def _state(holders: list[Holding]) -> str:
    if not holders:
        return "waiting"
    return "held" if any(holding.timeout for holding in holders) else "cooldown"


def _fence(holding: Holding) -> int:
    return holding.fence_token


def _holding(token: str, told: str, now: int) -> Holding | None:
    """None where its lease ran out."""
    record = read_record(told)
    if record.expires <= now:
        return None
    said = read_info(record.info)
    return Holding(
        token=token,
        fence_token=record.fence_token,
        weight=record.weight,
        timeout=seconds(record.lease),
        waited=seconds(record.waited),
        acquired_at=moment(record.acquired),
        expires_at=moment(record.expires),
        ttl=(record.expires - now) / 1000,
        holder=said.holder,
        metadata=said.metadata,
        renewed=said.renewed,
        renews_later=said.renews_later,
    )
