"""Reading what stands in Redis. Others may write there too: what is not as our scripts write it
is left out, and hides nothing else."""

import json
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from .runners import text

T = TypeVar("T")

DIGITS = 17
"""No number has more: a fencing token has 16."""

LAST_MOMENT = 10**14
"""No time comes so late, in milliseconds: the index takes such a score for a fencing token."""

LONGEST = 10**12
"""No duration is that long, in milliseconds: it would be 31 years."""


def ours(read: Callable[..., T], *told: Any) -> T | None:
    """What `read` makes of a record, or None where it can make nothing of it."""
    try:
        return read(*told)
    except (ValueError, KeyError, OverflowError):
        return None


class Record(NamedTuple):
    """What is noted of a holding; times in milliseconds."""

    weight: int
    expires: int
    fence_token: int
    acquired: int
    waited: int
    lease: int
    info: str


_NUMBERS = re.compile(rf"\d{{1,{DIGITS}}} " * 6, re.ASCII)


def read_record(told: str) -> Record:
    """Raises `ValueError` if it is none that the scripts write."""
    if not _NUMBERS.match(told):
        raise ValueError(f"{told[:80]!r} is not a lock record")
    *numbers, info = told.split(" ", 6)
    weight, expires, fence_token, acquired, waited, lease = map(int, numbers)
    return Record(weight, expires, fence_token, acquired, waited, lease, info)


def parsed(answer: str | bytes) -> Any:
    """What a script tells, which is JSON."""
    return json.loads(text(answer))


def pairs(flat: Iterable[str]) -> dict[str, str]:
    """A hash, as a script tells it."""
    each = iter(flat)
    return dict(zip(each, each, strict=True))


def number(told: str | bytes) -> int:
    """Raises `ValueError` if it is none that the scripts write."""
    found = int(told)
    if not 0 <= found < 10**DIGITS:
        raise ValueError(f"{found} is not a valid number in a lock record")
    return found


def moment(ms: int) -> datetime:
    """Return the time. Raises `ValueError` if Redis cannot have written it."""
    if not 0 <= ms < LAST_MOMENT:
        raise ValueError(f"{ms} is not a valid time in a lock record")
    return datetime.fromtimestamp(ms / 1000, UTC)


def seconds(ms: int) -> float:
    """Return the seconds. Raises `ValueError` if Redis cannot have written them."""
    if not 0 <= ms < LONGEST:
        raise ValueError(f"{ms} is not a valid duration in a lock record")
    return ms / 1000
