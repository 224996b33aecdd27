"""`locks list`: the active locks, as a table or as JSON."""

from collections.abc import Iterable
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_redislock.management.arguments import add_pattern, limit
from django_redislock.management.presenting import (
    HEADER,
    HIDEABLE,
    MIN_WIDTHS,
    as_json,
    as_rows,
    trouble_first,
)
from django_redislock.management.terminal import write_table
from django_redislock.manager import LockManager
from django_redislock.snapshots import LockInfo

HELP = "Show the active locks, those with trouble first."


def add_arguments(parser: CommandParser) -> None:
    add_pattern(parser)
    parser.add_argument(
        "--format",
        choices=("table", "json"),
        default="table",
        help="table, for people (the default); json has all there is to know, the owners'"
        " tokens too.",
    )
    parser.add_argument("--limit", type=limit, metavar="N", help="At most N locks.")


def run(command: BaseCommand, manager: LockManager, options: dict[str, Any]) -> None:
    found = look(manager, options["pattern"], options["limit"])
    if options["format"] == "json":
        for part in as_json(found):
            command.stdout.write(part, ending="")
    elif infos := sorted(found, key=order):
        write_table(command, HEADER, as_rows(infos, command.style), MIN_WIDTHS, HIDEABLE)
    else:
        command.stdout.write("No active locks.")


def order(info: LockInfo) -> tuple[object, ...]:
    """Return a sort key: trouble first, then the lease that expires first."""
    left = info.ttl or 0.0
    return *trouble_first(info), left, info.name


def look(manager: LockManager, pattern: str | None, limit: int | None) -> Iterable[LockInfo]:
    """All of them a page at a time; of a few, those whose leases end first."""
    if limit is None:
        return manager.active(pattern)
    return manager.page(pattern, stop=limit).infos
