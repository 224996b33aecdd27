"""The orders that the list can be brought into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..lock_state import SEVERITY, longest_lease, primary_holder, state_of
from ..models import ActiveLock
from ..snapshots import Holding
from ..text import holder_text, task_text

Key = Callable[[ActiveLock], Any]


def by_end(row: ActiveLock) -> tuple[float, str]:
    return longest_lease(row.info.holders), row.name


def _of_shown(value: Callable[[Holding], Any]) -> Key:
    def key(row: ActiveLock) -> Any:
        holding = primary_holder(row.info)
        return value(holding) if holding else None

    return key


KEYS: dict[str, Key] = {
    "name": lambda row: row.name,
    "kind": lambda row: row.info.kind,
    "state": lambda row: SEVERITY[state_of(row.info).code],
    "holder": _of_shown(holder_text),
    "task": _of_shown(lambda holding: task_text(holding) or None),
    "age": _of_shown(lambda holding: -holding.acquired_at.timestamp()),
    "lease": lambda row: longest_lease(row.info.holders),
    "waiters": lambda row: row.info.waiters,
    "fence": _of_shown(lambda holding: holding.fence_token),
    "using": lambda row: row.using,
}
"""What a column is sorted by; None stands last either way."""


def in_order(rows: list[ActiveLock], order: Sequence[tuple[str, bool]]) -> list[ActiveLock]:
    """Return `rows` sorted by columns, the first of them first, each downwards or not."""
    rows = sorted(rows, key=by_end)
    for column, downwards in reversed(order):
        key = KEYS[column]
        known = [row for row in rows if key(row) is not None]
        unknown = [row for row in rows if key(row) is None]
        rows = sorted(known, key=key, reverse=downwards) + unknown
    return rows
