"""Locks for a terminal and for programs."""

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any
from unicodedata import combining, east_asian_width

from django_redislock.info import Holding, LockInfo
from django_redislock.text import (
    age,
    holder_text,
    printable,
    short_duration,
    shown_metadata,
    task_text,
)

HEADER = ("NAME", "KIND", "HOLDER", "TASK", "AGE", "LEFT", "WAITERS", "FENCE")


def as_table(infos: Iterable[LockInfo]) -> Iterator[str]:
    """Yield the lines of a table: a header, then one line for each lock."""
    return aligned([HEADER, *map(cells, infos)])


def cells(info: LockInfo) -> tuple[str, ...]:
    name, kind, waiters = printable(info.name), printable(info.kind), str(info.waiters)
    held = info.first
    if held is None:
        return name, kind, f"({printable(info.state)})", "-", "-", "-", waiters, "-"
    others = f" (+{len(info.holders) - 1})" if len(info.holders) > 1 else ""
    return (
        name,
        kind,
        holder_text(held) + others,
        task_text(held) or "-",
        short_duration(age(held)),
        short_duration(held.ttl),
        waiters,
        str(held.fence_token),
    )


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = (cell + " " * (w - width(cell)) for cell, w in zip(row, widths, strict=True))
        yield "  ".join(padded).rstrip()


def width(text: str) -> int:
    """Return how many columns of a terminal `text` takes."""
    if text.isascii():
        return len(text)
    return sum(1 + (east_asian_width(c) in "WF") for c in text if not combining(c))


def as_json(infos: Iterable[LockInfo]) -> Iterator[str]:
    """Yield the parts of a JSON array, one for each lock, so that a long one streams.

    Non-ASCII is escaped, so nothing in it can steer a terminal.
    """
    before = "[\n"
    for info in infos:
        yield before + json.dumps(lock_facts(info), default=_plain)
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def lock_facts(info: LockInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "kind": info.kind,
        "capacity": info.capacity,
        "state": info.state,
        "waiters": info.waiters,
        "holders": [holding_facts(holding) for holding in info.holders],
    }


def holding_facts(holding: Holding) -> dict[str, Any]:
    holder = holding.holder
    return {
        "token": holding.token,
        "fence_token": holding.fence_token,
        "weight": holding.weight,
        "timeout": holding.timeout,
        "acquired_at": holding.acquired_at,
        "expires_at": holding.expires_at,
        "ttl": holding.ttl,
        "holder": {
            "host": holder.host,
            "pid": holder.pid,
            "thread": holder.thread,
            "task_name": holder.task_name,
            "task_id": holder.task_id,
        },
        "metadata": shown_metadata(holding.metadata),
    }


def holding_text(name: str, holding: Holding) -> str:
    task = task_text(holding)
    by = f"{holder_text(holding)}, task {task}" if task else holder_text(holding)
    held = short_duration(age(holding))
    return f"{printable(name)} (fencing token {holding.fence_token}, held by {by} for {held})"


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
