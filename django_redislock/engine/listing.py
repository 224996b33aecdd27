"""Reading what is held: one lock by name, or all of them, a page of each bucket at a time."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ..holder import read_info
from ..info import Holding, LockInfo
from ..keys import BUCKETS, Keys
from ..lua import INSPECT
from .drivers import text
from .ops import Batch, Call, Flow

PAGE = 200
"""Locks of one bucket that one call answers."""


@dataclass(slots=True)
class Cursor:
    """How far the reading of one bucket has come."""

    bucket: int
    start: str = "-inf"
    skip: int = 0
    told: set[str] = field(default_factory=set)
    """The names so far: a renewal moves a lock ahead of the cursor again."""


def get(keys: Keys, name: str, limit: float | None = None) -> Flow[LockInfo | None]:
    page = keys.inspect(keys.of(name).bucket)
    now, *_, rows = yield Call(INSPECT, page, ("", "", "", name), limit)
    return _lock_info(rows[0], now) if rows else None


def holds(keys: Keys, name: str, token: str, limit: float | None = None) -> Flow[bool]:
    """Whether that token holds that lock."""
    info = yield from get(keys, name, limit)
    return bool(info and any(holding.token == token for holding in info.holders))


def count(keys: Keys) -> Flow[int]:
    pages = [keys.inspect(bucket) for bucket in range(BUCKETS)]
    answers = yield Batch(tuple(Call(INSPECT, page, ("-inf", 0, 0)) for page in pages))
    return sum(held for _, held, *_ in answers)


def beginning() -> list[Cursor]:
    return [Cursor(bucket) for bucket in range(BUCKETS)]


def page(keys: Keys, cursors: list[Cursor]) -> Flow[tuple[list[LockInfo], list[Cursor]]]:
    """The next locks of all buckets in one round trip, and the cursors of those that have more."""
    answers = yield Batch(tuple(_call(keys, cursor) for cursor in cursors))
    infos: list[LockInfo] = []
    for cursor, (now, _, start, skip, rows) in zip(cursors, answers, strict=True):
        infos += _untold(cursor, [_lock_info(row, now) for row in rows])
        cursor.start, cursor.skip = text(start), skip
    return infos, [cursor for cursor in cursors if cursor.start]


def _call(keys: Keys, cursor: Cursor) -> Call:
    return Call(INSPECT, keys.inspect(cursor.bucket), (cursor.start, cursor.skip, PAGE))


def _untold(cursor: Cursor, infos: list[LockInfo]) -> list[LockInfo]:
    new = [info for info in infos if info.name not in cursor.told]
    cursor.told.update(info.name for info in new)
    return new


def _lock_info(row: list[Any], now: str | bytes) -> LockInfo:
    name, kind, capacity, waiters, records = row
    pairs = zip(records[::2], records[1::2], strict=True)
    holders = [_holding(text(token), text(record), int(text(now))) for token, record in pairs]
    return LockInfo(
        name=text(name),
        kind=text(kind),
        capacity=int(text(capacity)),
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


def _holding(token: str, record: str, now: int) -> Holding:
    *numbers, told = record.split(" ", 5)
    weight, expires, fence, acquired, lease = map(int, numbers)
    holder, metadata = read_info(told)
    return Holding(
        token=token,
        fence_token=fence,
        weight=weight,
        timeout=lease / 1000,
        acquired_at=_moment(acquired),
        expires_at=_moment(expires),
        ttl=(expires - now) / 1000,
        holder=holder,
        metadata=metadata,
    )


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
