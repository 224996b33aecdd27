"""Rows of the tables that several pages show, as templates read them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from ..advice import process_text
from ..snapshots import Event, Holder
from ..text import printable, short_duration
from .outcomes import outcome
from .timeline import clock

Link = Callable[[str | None], str]
"""Returns the address of a task's result, or an empty string."""

Cells = SimpleNamespace
"""The cells of a row by name. Their texts are safe to show."""


def party(holder: Holder, link: Link) -> Cells:
    """Return the cell of a holder or waiter. All parts except the process may be empty."""
    return Cells(
        process=process_text(holder),
        task=printable(holder.task_name or ""),
        task_id=printable(holder.task_id or ""),
        href=link(holder.task_id),
    )


def event_row(event: Event, now: datetime, link: Link, **cells: Any) -> Cells:
    """Return the row of an event of the history, with more cells."""
    return Cells(
        at=clock(event.at, now),
        party=party(event.holder, link),
        waited=short_duration(event.waited) if event.waited else "",
        held=short_duration(event.held) if event.acquired_at else "",
        outcome=outcome(event.outcome),
        fence=str(event.fence_token or ""),
        **cells,
    )
