"""`locks history`: the recorded events."""

import math
import time
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


def add_arguments(parser: CommandParser) -> None:
    add_pattern(parser)
    help_text = f"Only these outcomes: {', '.join(OUTCOMES)}. Write it after PATTERN."
    parser.add_argument(
        "--outcome", nargs="+", action="extend", choices=OUTCOMES, metavar="O", help=help_text
    )
    help_text = "Only the last D: 90s, 5m, 2h, 1d."
    parser.add_argument("--since", type=duration, default=math.inf, metavar="D", help=help_text)
    help_text = "At most N events; default: %(default)s."
    parser.add_argument("--limit", type=limit, default=100, metavar="N", help=help_text)
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
    since, count = time.time() - options["since"], limit
    while True:
        events = manager.history(pattern if is_name else None, count)
        found = [
            event
            for event in events
            if event.at.timestamp() >= since
            and matches(event.name)
            and event.outcome in (outcomes or OUTCOMES)
        ]
        is_last = len(events) < count or events[-1].at.timestamp() < since or count == MAX_COUNT
        if is_last or len(found) >= limit:
            return found[:limit]
        count = min(count * 10, MAX_COUNT)
