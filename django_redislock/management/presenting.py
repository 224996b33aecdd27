"""Locks for a terminal and for programs."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.core.management.color import Style
from django.utils.timezone import localtime

from django_redislock.info import Event, Holding, LockInfo, Waiter
from django_redislock.management.terminal import Paint, Row, plain
from django_redislock.text import (
    age,
    holder_text,
    is_overdue,
    printable,
    short_duration,
    shown_metadata,
    shown_of,
    task_text,
    was_extended,
)

HEADER = ("NAME", "STATE", "KIND", "HOLDER", "TASK", "AGE", "LEFT", "WAITERS", "FENCE")
EVENT_HEADER = ("AT", "OUTCOME", "NAME", "HELD", "WAITED", "HOLDER", "TASK", "FENCE")

OUTCOMES = ("released", "passed", "expired", "lost", "forced", "refused", "skipped")
"""How an event can have ended; see `Event.outcome`."""


def as_rows(infos: Iterable[LockInfo], style: Style) -> Iterator[Row]:
    """Yield a line for each lock, those in red whose renewal is overdue."""
    for info in infos:
        yield style.ERROR if info.is_stale else plain, cells(info)


def cells(info: LockInfo) -> tuple[str, ...]:
    name, kind, waiters = printable(info.name), printable(info.kind), str(info.waiters)
    held = shown_of(info)
    if held is None:
        return name, printable(info.state), kind, "-", "-", "-", "-", waiters, "-"
    others = f" (+{len(info.holders) - 1})" if len(info.holders) > 1 else ""
    return (
        name,
        state_text(info),
        kind,
        holder_text(held) + others,
        task_text(held) or "-",
        short_duration(age(held)),
        short_duration(held.ttl),
        waiters,
        str(held.fence_token),
    )


def state_text(info: LockInfo) -> str:
    if info.is_stale:
        return "stale"
    if info.state != "held":
        return printable(info.state)
    held = shown_of(info)
    if held is None:
        return printable(info.state)
    if is_overdue(held):
        return "overdue"
    if held.renews_later:
        return "not yet renewed"
    return "held" if held.renewed else "not renewed"


def renewal_text(holding: Holding) -> str:
    """Return in a few words whether the lease is renewed."""
    ago = short_duration(holding.since_renewal)
    if is_overdue(holding):
        return f"renewal overdue, last renewed {ago} ago"
    if holding.renewed:
        return f"renewed {ago} ago"
    if was_extended(holding):
        return "renewed before"
    return "renewal starts later" if holding.renews_later else "not renewed"


def as_json(infos: Iterable[LockInfo]) -> Iterator[str]:
    """Yield the parts of a JSON array, one for each lock, so that a long one streams.

    Non-ASCII is escaped, so nothing in it can steer a terminal.
    """
    return json_array(map(lock_facts, infos))


def json_array(facts: Iterable[dict[str, Any]]) -> Iterator[str]:
    before = "[\n"
    for each in facts:
        yield before + json_text(each)
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def json_text(facts: dict[str, Any]) -> str:
    text = json.dumps(facts, default=_plain)
    if r"\ud" not in text:
        return text
    # Half of a pair of surrogates is no character, and programs refuse the whole text for it.
    whole = json.dumps(facts, default=_plain, ensure_ascii=False).encode(errors="replace")
    return json.dumps(json.loads(whole))


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
    return told_facts(holding) | {"is_stale": holding.is_stale}


def told_facts(told: Holding | Waiter | Event) -> dict[str, Any]:
    """Return all that is known of it, but for metadata that are not to be shown."""
    return asdict(told) | {"metadata": shown_metadata(told.metadata)}


def event_rows(events: Iterable[Event], style: Style) -> Iterator[Row]:
    for event in events:
        yield outcome_paint(event.outcome, style), event_cells(event)


def event_cells(event: Event) -> tuple[str, ...]:
    held = event.acquired_at is not None
    return (
        moment_text(event.at),
        printable(event.outcome),
        printable(event.name),
        short_duration(event.held) if held else "-",
        short_duration(event.waited),
        holder_text(event),
        task_text(event) or "-",
        str(event.fence_token or "-"),
    )


def outcome_paint(outcome: str, style: Style) -> Paint:
    paints = {"lost": style.ERROR, "forced": style.ERROR, "expired": style.WARNING}
    return paints.get(outcome, plain)


def moment_text(moment: datetime) -> str:
    """Return it in the project's time zone, to the second."""
    return localtime(moment).isoformat(" ", "seconds")


def metadata_text(metadata: Mapping[str, Any]) -> str:
    """Return it on one line, or nothing if there is none."""
    if not metadata:
        return ""
    return printable(json.dumps(shown_metadata(metadata), ensure_ascii=False, default=str))


def holding_text(name: str, holding: Holding) -> str:
    return f"{printable(name)} ({_by_text(holding)})"


def release_text(name: str, holding: Holding) -> str:
    """Return what there is to know before one takes it from its holder."""
    if not holding.timeout:
        left = short_duration(holding.ttl)
        token = f"fencing token {holding.fence_token}"
        return f"{printable(name)} ({token}, released; cools down for {left})"
    stale = "STALE, " if holding.is_stale else ""
    return f"{printable(name)} ({_by_text(holding)}; {stale}{renewal_text(holding)})"


def _by_text(holding: Holding) -> str:
    task = task_text(holding)
    by = f"{holder_text(holding)}, task {task}" if task else holder_text(holding)
    return f"fencing token {holding.fence_token}, held by {by} for {short_duration(age(holding))}"


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
