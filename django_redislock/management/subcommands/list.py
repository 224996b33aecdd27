"""`locks list`: a table of the active locks, or JSON."""

from collections.abc import Iterable
from heapq import nsmallest
from itertools import count
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from ...manager import LockManager
from ...snapshots import LockInfo
from ..arguments import add_format, add_pattern, limit
from ..formatting import HEADER, lock_cells, lock_facts, trouble_first, write_json
from ..output import plain, write_table

MAX_ROWS = 1000
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
    infos = manager.active(pattern) if limit is None else manager.page(pattern, stop=limit).infos
    if options["format"] == "json":
        write_json(command, map(lock_facts, infos))
    else:
        write_locks(command, infos, limit or MAX_ROWS)


def write_locks(command: BaseCommand, infos: Iterable[LockInfo], limit: int) -> None:
    read = count()
    found = nsmallest(
        limit,
        (info for info, _ in zip(infos, read, strict=False)),
        key=lambda info: (*trouble_first(info), info.ttl or 0.0, info.name),
    )
    if not found:
        command.stdout.write("No active locks.")
        return
    red = command.style.ERROR
    rows = [(red if info.is_stale else plain, lock_cells(info)) for info in found]
    write_table(command, HEADER, rows)
    if more := next(read) - len(found):
        command.stdout.write(f"and {more:,} more. Give a PATTERN, or use --format json.")
