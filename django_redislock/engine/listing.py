"""Reading what is held: one lock by name, or all of them, a page of each bucket at a time."""

import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, TypeAlias, TypeVar

from redis.exceptions import ClusterCrossSlotError, ResponseError

from ..conf import conf
from ..holder import read_info
from ..info import Holding, LockInfo, Page, Waiter
from ..keys import BUCKETS, Keys, LockKeys
from ..lua import INSPECT, NAMES, PAGE, QUEUE, ROWS
from ..names import check_name, could_match
from ..text import printable
from .ops import Batch, Call, Flow
from .records import moment, number, ours, pairs, parsed, read_record, seconds

T = TypeVar("T")

MOST = 200
"""Locks that one call tells of at most."""

FIRST_PAGE = 10
"""The same of the first call: each of the next ones answers four times as many as the one
before."""

NAMED = 500
"""Locks that one call for several buckets names at most."""

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


End: TypeAlias = tuple[float, int, str]
"""When the last lease of a lock ends, in ms, its bucket and its name: in that order."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Of the locks of a bucket that match, how many there are, and those that end first."""

    total: int
    first: list[End]


def get(keys: Keys, name: str, limit: float | None = None) -> Flow[LockInfo | None]:
    infos = _lock_infos(*parsed((yield _rows([keys.of(name)], limit))))
    return infos[0] if infos else None


def holds(keys: Keys, name: str, token: str, limit: float | None = None) -> Flow[bool]:
    """Whether that token holds that lock."""
    info = yield from get(keys, name, limit)
    return bool(info and any(holding.token == token for holding in info.holders))


def count(keys: Keys) -> Flow[int]:
    known = yield from _ends(keys, range(BUCKETS), 0)
    return sum(ends.total for ends in known.values())


def ending_first(keys: Keys, pattern: str | None, start: int, stop: int) -> Flow[Page]:
    """Of the locks whose names match, those from `start` to `stop` in the order in which their
    leases end. In one round trip where one call can look at all buckets and tell of as many."""
    if pattern is not None and not could_match(pattern):
        return Page((), 0)
    if pattern is None and stop <= MOST and not keys.apart:
        try:
            return (yield from _first_of_all(keys, start, stop))
        except ResponseError as error:
            if not _tells_of_slots(error):
                raise
    return (yield from _first_by_name(keys, pattern, start, stop))


def _first_of_all(keys: Keys, start: int, stop: int) -> Flow[Page]:
    buckets = tuple(chain.from_iterable(map(keys.inspect, range(BUCKETS))))
    answer = yield Call(PAGE, buckets, (start, stop, conf.history), limit=LONGEST)
    now, total, rows = parsed(answer)
    return Page(tuple(_lock_infos(now, rows)), total)


def _first_by_name(keys: Keys, pattern: str | None, start: int, stop: int) -> Flow[Page]:
    """In two round trips, or three where most of the first are of one bucket: names first."""
    pieces: tuple[str, ...] = () if pattern is None else _pieces(pattern)
    # Names are spread evenly over the buckets, but which of them end first need not be.
    of_each = min(stop, stop // BUCKETS * 2 + FIRST_PAGE)
    known = yield from _ends(keys, range(BUCKETS), of_each, pieces)
    first = _first(known.values(), stop)
    cut_short = [bucket for bucket, ends in known.items() if _is_cut_short(ends, first, stop)]
    if cut_short:
        known |= yield from _ends(keys, cut_short, stop, pieces)
        first = _first(known.values(), stop)
    names = [name for _, _, name in first[start:]]
    infos = yield from several(keys, names)
    order = {name: place for place, name in enumerate(names)}
    found = sorted(infos, key=lambda info: order[info.name])
    return Page(tuple(found), sum(ends.total for ends in known.values()))


def _ends(
    keys: Keys, buckets: Sequence[int], limit: int, pieces: tuple[str, ...] = ()
) -> Flow[dict[int, Ends]]:
    args: tuple[str | int, ...] = (limit, *pieces, conf.history)

    def batch(apart: bool) -> Batch:
        # To look for a pattern takes long, and others get in between two calls.
        at_once = 1 if apart or pieces else max(1, NAMED // max(1, limit))
        some = [tuple(map(keys.history, part)) for part in _in_parts(buckets, at_once)]
        calls = [Call(NAMES, tuple(chain.from_iterable(each)), args) for each in some]
        return Batch(tuple(calls), LONGEST)

    told = chain.from_iterable((yield from _of_many_buckets(keys, batch)))
    return {
        bucket: Ends(total, [(float(end), bucket, name) for name, end in pairs(flat).items()])
        for bucket, (total, flat) in zip(buckets, told, strict=True)
    }


def _of_many_buckets(keys: Keys, batch: Callable[[bool], Batch]) -> Flow[list[Any]]:
    """What a batch is answered whose calls are for many buckets each or, where those have to be
    asked apart, for one. A server of a Cluster has one slot in a call, also where its client knows
    of no Cluster."""
    try:
        answers = yield batch(keys.apart)
    except ResponseError as error:
        if not _tells_of_slots(error):
            raise
        answers = yield batch(True)
    return [parsed(answer) for answer in answers]


def _tells_of_slots(error: ResponseError) -> bool:
    # Before redis-py 6 only a Cluster's client knows the class.
    return isinstance(error, ClusterCrossSlotError) or str(error).startswith("CROSSSLOT")


def _first(known: Iterable[Ends], stop: int) -> list[End]:
    return sorted(chain.from_iterable(ends.first for ends in known))[:stop]


def _is_cut_short(ends: Ends, first: list[End], stop: int) -> bool:
    """Whether a bucket may have more of the first ones than it told."""
    is_all = len(ends.first) >= min(ends.total, stop)
    return not is_all and (len(first) < stop or ends.first[-1:] <= first[-1:])


def several(keys: Keys, names: Sequence[str]) -> Flow[list[LockInfo]]:
    """What is known of these locks, in no order, in one round trip."""
    if not names:
        return []

    def batch(apart: bool) -> Batch:
        by_bucket: dict[int, list[LockKeys]] = {}
        for each in map(keys.of, names):
            by_bucket.setdefault(each.bucket if apart else 0, []).append(each)
        parts = [part for some in by_bucket.values() for part in _in_parts(some, MOST)]
        return Batch(tuple(map(_rows, parts)), LONGEST)

    answers = yield from _of_many_buckets(keys, batch)
    return [info for answer in answers for info in _lock_infos(*answer)]


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


def _pieces(pattern: str) -> tuple[str, ...]:
    """What stands between the stars, as patterns of Lua, but for question marks."""
    return tuple("".join(map(_literal, piece)) for piece in re.split(r"\*+", pattern))


def _literal(char: str) -> str:
    if char == "\0":
        return "%z"
    plain = char == "?" or char.isalnum() or not char.isascii()
    return char if plain else f"%{char}"


def beginning() -> list[Cursor]:
    return [Cursor(bucket) for bucket in range(BUCKETS)]


def page(keys: Keys, cursors: list[Cursor]) -> Flow[tuple[list[LockInfo], list[Cursor]]]:
    """The next locks of all buckets in one round trip, and the cursors of those that have more."""
    answers = yield Batch(tuple(_call(keys, cursor) for cursor in cursors))
    infos: list[LockInfo] = []
    for cursor, answer in zip(cursors, answers, strict=True):
        now, cursor.start, cursor.ended, rows = parsed(answer)
        infos += [info for info in _lock_infos(now, rows) if cursor.tell(info.name)]
        cursor.limit = min(cursor.limit * 4, MOST)
    return infos, [cursor for cursor in cursors if cursor.start]


def _call(keys: Keys, cursor: Cursor) -> Call:
    args = (cursor.start, cursor.ended, cursor.limit, conf.history)
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
    )
