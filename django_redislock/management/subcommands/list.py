"""`locks list`: a table of the active locks, or JSON."""

from collections.abc import Iterable
from heapq import nsmallest
from itertools import count
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from ...manager import LockManager
from ...snapshots import LockInfo, Page
from ..arguments import add_format, add_pattern, limit
from ..formatting import HEADER, lock_cells, lock_facts, urgency, write_json
from ..output import plain, write_table

DEFAULT_ROWS = 1000
"""Rows of the table without --limit, so that a long list takes little memory."""

HELP = "List the active locks: stale locks first, then the locks with the most waiters."


def add_arguments(parser: CommandParser) -> None:
    add_pattern(parser)
    add_format(parser, "table", "json")
    parser.add_argument(
        "--limit", type=limit, metavar="N", help="At most N locks, whose leases expire first."
    )


def run(command: BaseCommand, manager: LockManager, options: dict[str, Any]) -> None:
    pattern, limit = options["pattern"], options["limit"]
    page = manager.page(pattern, stop=limit) if limit else None
    if options["format"] == "json":
        write_json(command, map(lock_facts, page.infos if page else manager.active(pattern)))
        return
    page = page or first_page(manager.active(pattern))
    infos, red = sorted(page.infos, key=urgency), command.style.ERROR
    if infos:
        rows = [(red if info.is_stale else plain, lock_cells(info)) for info in infos]
        write_table(command, HEADER, rows)
    else:
        command.stdout.write("No active locks.")
    if more := page.total - len(infos):
        text = f"and {more:,} more. Give a PATTERN, a larger --limit, or --format json."
        command.stdout.write(text)


def first_page(infos: Iterable[LockInfo]) -> Page:
    """Return the first rows of a table of very many locks."""
    read = count()
    counted = (info for info, _ in zip(infos, read, strict=False))
    return Page(tuple(nsmallest(DEFAULT_ROWS, counted, key=urgency)), total=next(read))
