"""`locks history`: the recorded events."""

from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from ...conf import conf
from ...manager import LockManager
from ...snapshots import Event
from ...text import any_of
from ...validators import MAX_COUNT
from ..arguments import add_format, add_pattern, duration, limit
from ..formatting import OUTCOMES, json_text, record_facts, write_events, write_json

HELP = "List the recorded events of locks, the latest first."

DEFAULT_EVENTS = 100

MAX_AGE_SECONDS = 100 * 365 * 86400.0
"""No event is older. A much longer age would be before the first possible date."""


def add_arguments(parser: CommandParser) -> None:
    add_pattern(parser)
    parser.add_argument(
        "--outcome",
        nargs="+",
        action="extend",
        choices=OUTCOMES,
        metavar="O",
        help=f"Only these outcomes: {', '.join(OUTCOMES)}. Write it after PATTERN.",
    )
    parser.add_argument(
        "--since", type=duration, metavar="D", help="Only the last D: 90s, 5m, 2h, 1d."
    )
    parser.add_argument(
        "--limit",
        type=limit,
        default=DEFAULT_EVENTS,
        metavar="N",
        help=f"At most N events; default: {DEFAULT_EVENTS}.",
    )
    add_format(parser, "table", "json", "jsonl")


def run(command: BaseCommand, manager: LockManager, options: dict[str, Any]) -> None:
    events = matching_events(manager, options)
    if options["format"] == "json":
        write_json(command, map(record_facts, events))
    elif options["format"] == "jsonl":
        for event in events:
            command.stdout.write(json_text(record_facts(event)))
    elif events:
        write_events(command, events)
    else:
        command.stdout.write("No history." if conf.history else "No history is kept.")


def matching_events(manager: LockManager, options: dict[str, Any]) -> list[Event]:
    """Return the latest matching events, reading as far back as necessary."""
    pattern, outcomes, limit = options["pattern"], options["outcome"], options["limit"]
    is_name = pattern is not None and not {"*", "?"} & set(pattern)
    matches = any_of((pattern or "*",)).match
    age = MAX_AGE_SECONDS if options["since"] is None else options["since"]
    since = datetime.now(UTC) - timedelta(seconds=min(age, MAX_AGE_SECONDS))
    count = limit
    while True:
        events = manager.history(pattern if is_name else None, count)
        recent = [event for event in events if event.at >= since]
        found = [
            event
            for event in recent
            if matches(event.name) and (not outcomes or event.outcome in outcomes)
        ]
        is_complete = len(events) < count or len(recent) < len(events) or count == MAX_COUNT
        if is_complete or len(found) >= limit:
            return found[:limit]
        count = min(count * 10, MAX_COUNT)
