"""A holder or waiter in a cell of a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..advice import process_text
from ..snapshots import Holder
from ..text import printable

Link = Callable[[str | None], str]
"""Returns the address of a task's result, or an empty string."""


@dataclass(frozen=True, slots=True)
class Party:
    """Its parts; all but the process may be empty."""

    process: str
    task: str
    task_id: str
    href: str


def party_of(holder: Holder, link: Link) -> Party:
    return Party(
        process=process_text(holder),
        task=printable(holder.task_name or ""),
        task_id=printable(holder.task_id or ""),
        href=link(holder.task_id),
    )
