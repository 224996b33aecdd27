"""Locks for a terminal and for programs."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand
from django.core.management.color import Style
from django.utils.timezone import localtime

from django_redislock.lock_state import is_overdue, primary_holder, was_extended
from django_redislock.management.terminal import Paint, Row, plain, write_table
from django_redislock.snapshots import Event, Holding, LockInfo, Waiter
from django_redislock.text import (
    age,
    holder_text,
    printable,
    redacted_metadata,
    short_duration,
    task_text,
)

HEADER = ("NAME", "STATE", "KIND", "HOLDER", "TASK", "AGE", "LEFT", "WAITERS", "FENCE")
HIDEABLE = ("KIND", "FENCE")
"""The columns that a narrow terminal leaves out, the first one first."""

EVENT_HEADER = ("AT", "OUTCOME", "NAME", "HELD", "WAITED", "HOLDER", "TASK", "FENCE")
EVENT_HIDEABLE = ("WAITED", "FENCE", "TASK")

MIN_WIDTHS = {"NAME": 8, "HOLDER": 8, "TASK": 6}
"""The columns whose cells a narrow terminal cuts, and how wide they stay."""

OUTCOMES = ("released", "passed", "expired", "lost", "forced", "refused", "skipped")
"""How an event can have ended; see `Event.outcome`."""


def trouble_first(info: LockInfo) -> tuple[bool, int]:
    """Return a sort key that puts stale locks first, then those with the most waiters."""
    return not info.is_stale, -info.waiters


def as_rows(infos: Iterable[LockInfo], style: Style) -> Iterator[Row]:
    """Yield a line for each lock, those in red whose renewal is overdue."""
    for info in infos:
        yield style.ERROR if info.is_stale else plain, cells(info)


def cells(info: LockInfo) -> tuple[str, ...]:
    name, kind, waiters = printable(info.name), printable(info.kind), str(info.waiters)
    held = primary_holder(info)
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
    held = primary_holder(info)
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
    return asdict(told) | {"metadata": redacted_metadata(told.metadata)}


def write_events(command: BaseCommand, events: Iterable[Event]) -> None:
    """Write a table of events."""
    write_table(command, EVENT_HEADER, event_rows(command, events), MIN_WIDTHS, EVENT_HIDEABLE)


def event_rows(command: BaseCommand, events: Iterable[Event]) -> Iterator[Row]:
    is_short = command.stdout.isatty()
    for event in events:
        yield outcome_paint(event.outcome, command.style), event_cells(event, is_short)


def event_cells(event: Event, is_short: bool) -> tuple[str, ...]:
    held = event.acquired_at is not None
    return (
        short_moment_text(event.at) if is_short else moment_text(event.at),
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


def short_moment_text(moment: datetime) -> str:
    """Return the time in the project's time zone, with the date if that is not today's."""
    local, today = localtime(moment), localtime(datetime.now(UTC)).date()
    return f"{local:%H:%M:%S}" if local.date() == today else f"{local:%Y-%m-%d %H:%M:%S}"


def metadata_text(metadata: Mapping[str, Any]) -> str:
    """Return it on one line, or nothing if there is none."""
    if not metadata:
        return ""
    return printable(json.dumps(redacted_metadata(metadata), ensure_ascii=False, default=str))


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
