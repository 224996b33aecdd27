"""`locks list`: a table of the active locks, or of the processes that hold them, or JSON."""

from collections.abc import Iterable
from dataclasses import asdict
from heapq import nsmallest
from itertools import count
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from ...lock_state import ProcessLocks, by_process, process_of, urgency
from ...manager import LockManager
from ...snapshots import LockInfo
from ...text import short_duration
from ..arguments import add_format, add_pattern, add_process, limit
from ..formatting import HEADER, lock_cells, lock_facts, write_json
from ..output import write_table

DEFAULT_ROWS = 1000
"""Rows of the table without --limit, so that a long list takes little memory."""

HELP = "List the active locks: stale locks first, then the longest waits."


def add_arguments(parser: CommandParser) -> None:
    add_pattern(parser)
    add_process(parser)
    help_text = "One row for each process that holds locks, instead of one for each lock."
    parser.add_argument("--by-process", action="store_true", help=help_text)
    add_format(parser, "table", "json")
    help_text = f"At most the first N rows; default: {DEFAULT_ROWS:,} in a table, all in JSON."
    parser.add_argument("--limit", type=limit, metavar="N", help=help_text)


def run(command: BaseCommand, manager: LockManager, options: dict[str, Any]) -> None:
    limit, read, process = options["limit"], count(), options["process"]
    infos: Iterable[LockInfo] = manager.active(options["pattern"])
    if process:
        infos = (info for info in infos if process in map(process_of, info.holders))
    if options["by_process"]:
        _write_processes(command, by_process(infos)[:limit], options["format"])
        return
    if options["format"] == "json":
        first = nsmallest(limit, infos, key=urgency) if limit else infos
        write_json(command, map(lock_facts, first))
        return
    # `read` counts the locks while they pass by, because all of them would take much memory.
    counted = (info for info, _ in zip(infos, read, strict=False))
    shown = nsmallest(limit or DEFAULT_ROWS, counted, key=urgency)
    if shown:
        styles = ["ERROR" if info.is_stale else "" for info in shown]
        write_table(command, [HEADER, *map(lock_cells, shown)], *styles)
    else:
        is_narrowed = options["pattern"] or process
        command.stdout.write("No active lock matches." if is_narrowed else "No active locks.")
    if more := next(read) - len(shown):
        text = f"and {more:,} more. Give a PATTERN, a larger --limit, or --format json."
        command.stdout.write(text)


def _write_processes(command: BaseCommand, found: list[ProcessLocks], form: str) -> None:
    if form == "json":
        write_json(command, map(asdict, found))
        return
    rows = [
        (each.process, str(len(each.names)), str(each.stale), short_duration(each.oldest))
        for each in found
    ]
    styles = ["ERROR" if each.stale else "" for each in found]
    if found:
        write_table(command, [("PROCESS", "LOCKS", "STALE", "OLDEST"), *rows], *styles)
    else:
        command.stdout.write("No process holds an active lock.")
