"""Parse what Redis returns.

Other programs can write to the same keys. There is one rule: a record that does not parse is
skipped, and hides no other record. `parse_or_none()` applies it.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from redis.exceptions import InvalidResponse

T = TypeVar("T")

MAX_DIGITS = 17
"""The digits of a stored number. A fencing token has 16."""

MAX_TIME_MS = 10**14
"""Times are earlier, in milliseconds since the epoch. A larger score is a fencing token."""

MAX_DURATION_MS = 10**12
"""Durations are shorter, in milliseconds (31 years)."""


def text(value: str | bytes) -> str:
    """Return a reply as text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


@contextmanager
def valid_reply() -> Iterator[None]:
    """Raise redis-py's `InvalidResponse` if the block cannot parse a reply.

    The reply is of no script of this package: something else than Redis may answer. So the server
    counts as unusable, like one that does not answer.
    """
    try:
        yield
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError):
        raise InvalidResponse("Redis sent a reply that does not parse") from None


def parse_or_none(parse: Callable[..., T], *values: Any) -> T | None:
    """Return what `parse` makes of the values, or None if they do not parse."""
    try:
        return parse(*values)
    except (ValueError, KeyError, OverflowError):
        return None


def parse_all(
    parse: Callable[..., T | None], rows: Iterable[Iterable[Any]], *more: Any
) -> list[T]:
    """Return what `parse` makes of the values of each row and `more`, without None."""
    parsed = [parse_or_none(parse, *row, *more) for row in rows]
    return [each for each in parsed if each is not None]


class HolderRecord(NamedTuple):
    """The record of a holder. Times and durations are in milliseconds."""

    weight: int
    expires: int
    fence_token: int
    acquired: int
    waited: int
    lease: int
    payload: str


_NUMBERS = re.compile(rf"\d{{1,{MAX_DIGITS}}} " * 6, re.ASCII)


def parse_holder(record: str) -> HolderRecord:
    """Parse the record of a holder. Raises `ValueError` if it is not one."""
    if not _NUMBERS.match(record):
        raise ValueError(f"{record[:80]!r} is not a lock record")
    *numbers, payload = record.split(" ", 6)
    weight, expires, fence_token, acquired, waited, lease = map(int, numbers)
    return HolderRecord(weight, expires, fence_token, acquired, waited, lease, payload)


def parse_replies(replies: Iterable[bytes]) -> list[Any]:
    """Parse the JSON that scripts replied with. Raises `InvalidResponse` if it does not parse."""
    with valid_reply():
        return [json.loads(reply.decode(errors="replace")) for reply in replies]


def pairs(flat: Iterable[str]) -> dict[str, str]:
    """Make a dict of alternating names and values."""
    each = iter(flat)
    return dict(zip(each, each, strict=True))


def number(value: str | bytes) -> int:
    """Parse a number. Raises `ValueError` if no script can have written it."""
    found = int(value)
    if not 0 <= found < 10**MAX_DIGITS:
        raise ValueError(f"{found} is not a valid number in a lock record")
    return found


def moment(ms: int) -> datetime:
    """Convert a time. Raises `ValueError` if no script can have written it."""
    if not 0 <= ms < MAX_TIME_MS:
        raise ValueError(f"{ms} is not a valid time in a lock record")
    return datetime.fromtimestamp(ms / 1000, UTC)


def seconds(ms: int) -> float:
    """Convert a duration. Raises `ValueError` if no script can have written it."""
    if not 0 <= ms < MAX_DURATION_MS:
        raise ValueError(f"{ms} is not a valid duration in a lock record")
    return ms / 1000
