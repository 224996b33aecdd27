"""Reading what stands in Redis. Others may write there too: what is not as our scripts write it
is left out, and hides nothing else."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

T = TypeVar("T")

LARGEST = 10**17
"""No number is that great: a fencing token has 16 digits."""

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


def number(told: str | bytes) -> int:
    """Raises `ValueError` if it is none that the scripts write."""
    found = int(told)
    if not 0 <= found < LARGEST:
        raise ValueError(f"{found} is no number of a record")
    return found


def moment(ms: int) -> datetime:
    """Raises `ValueError` if that is no time of a record."""
    if not 0 <= ms < LAST_MOMENT:
        raise ValueError(f"{ms} is no time of a record")
    return datetime.fromtimestamp(ms / 1000, UTC)


def seconds(ms: int) -> float:
    """Raises `ValueError` if that is no duration of a record."""
    if not 0 <= ms < LONGEST:
        raise ValueError(f"{ms} is no duration of a record")
    return ms / 1000
