"""Locks and events as table rows, sentences and JSON."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand
from django.utils.timezone import localtime

from ..lock_state import (
    primary_holder,
    state_of,
)
from ..sentences import forced_text
from ..snapshots import Event, Holding, LockInfo, Waiter
from ..text import (
    age,
    clock_text,
    holder_text,
    printable,
    redacted_metadata,
    short_duration,
    task_text,
)
from ..waits import Dependency
from .output import write_table

HEADER = ("NAME", "STATE", "HOLDER", "AGE", "LEFT", "WAITERS", "TASK", "KIND", "FENCE")
EVENT_HEADER = ("AT", "OUTCOME", "NAME", "HOLDER", "HELD", "WAITED", "FORCED BY", "TASK", "FENCE")


OUTCOMES = ("released", "passed", "expired", "lost", "forced", "killed", "refused", "skipped")
"""How an event can have ended; see `Event.outcome`."""

SEVERITIES = {"expired": "WARNING", "killed": "WARNING", "lost": "ERROR", "forced": "ERROR"}
"""The style of Django for an outcome, if it has one."""


def lock_cells(info: LockInfo) -> tuple[str, ...]:
    name, kind, state = printable(info.name), info.kind, str(state_of(info).label)
    longest_wait = short_duration(info.longest_wait).split()[0]  # its larger unit is enough
    waiters = f"{info.waiters} ({longest_wait})" if info.waiters else "0"
    held = primary_holder(info)
    if held is None:
        return name, state, "-", "-", "-", waiters, "-", kind, "-"
    others = f" (+{len(info.holders) - 1})" if len(info.holders) > 1 else ""
    left = "-" if held.unconfirmed else short_duration(held.ttl)
    times = short_duration(age(held)), left
    task, fence = task_text(held) or "-", str(held.fence_token)
    return name, state, holder_text(held) + others, *times, waiters, task, kind, fence


def write_json(command: BaseCommand, facts: Iterable[dict[str, Any]]) -> None:
    """Write a JSON array, one object per line, without keeping a long one in memory."""
    before = "[\n"
    for each in facts:
        command.stdout.write(before + json_text(each), ending="")
        before = ",\n"
    command.stdout.write("[]" if before == "[\n" else "\n]")


def json_text(facts: dict[str, Any]) -> str:
    """Return JSON in ASCII, which cannot change the state of a terminal."""
    text = json.dumps(facts, default=datetime.isoformat, ensure_ascii=False)
    # Many programs refuse a lone surrogate, which becomes a question mark.
    return json.dumps(json.loads(text.encode(errors="replace")))


def lock_facts(info: LockInfo) -> dict[str, Any]:
    holders = [record_facts(each) | {"is_stale": each.is_stale} for each in info.holders]
    facts = asdict(replace(info, holders=()))
    return facts | {"state": state_of(info).code, "holders": holders}


def record_facts(record: Holding | Waiter | Event) -> dict[str, Any]:
    """Return all fields, with redacted metadata."""
    return asdict(record) | {"metadata": redacted_metadata(record.metadata)}


def wait_facts(wait: Dependency) -> dict[str, Any]:
    """Return one wait of a chain."""
    return {
        "name": wait.name,
        "waited": wait.waiter.waited,
        "waiter": asdict(wait.waiter.holder),
        "also_holds": wait.also_holds,
        "holders": [asdict(each.holder) for each in wait.holdings],
    }


def write_events(command: BaseCommand, events: Sequence[Event]) -> None:
    """Write a table of events."""
    moment = clock_text if command.stdout.isatty() else moment_text
    rows = [EVENT_HEADER, *(event_cells(event, moment) for event in events)]
    styles = [SEVERITIES.get(event.outcome, "") for event in events]
    write_table(command, rows, *styles)


def event_cells(event: Event, moment: Callable[[datetime], str]) -> tuple[str, ...]:
    return (
        moment(event.at),
        event.outcome,
        printable(event.name),
        holder_text(event),
        short_duration(event.held) if event.acquired_at else "-",
        short_duration(event.waited),
        printable(forced_text(event)) or "-",
        task_text(event) or "-",
        str(event.fence_token or "-"),
    )


def moment_text(moment: datetime) -> str:
    """Return the date and time in the project's time zone, to the second."""
    return localtime(moment).isoformat(" ", "seconds")
