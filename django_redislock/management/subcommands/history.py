"""`locks history`: the recorded events."""

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from ...backends import servers
from ...conf import conf
from ...engine import history
from ...engine.runners import run as run_flow
from ...manager import LockManager
from ...names import matcher
from ...snapshots import Event
from ...validators import MAX_LEASE_SECONDS
from ..arguments import add_format, add_pattern, duration, limit
from ..formatting import OUTCOMES, record_facts, write_events, write_json

HELP = "List the recorded events of locks, the latest first."


def add_arguments(parser: CommandParser) -> None:
    add_pattern(parser)
    help_text = f"Only this outcome; can be repeated: {', '.join(OUTCOMES)}."
    parser.add_argument(
        "--outcome", action="append", choices=OUTCOMES, metavar="O", help=help_text
    )
    help_text = "Only the last D: 90s, 5m, 2h, 1d."
    parser.add_argument("--since", type=duration, default=math.inf, metavar="D", help=help_text)
    help_text = "At most N events; default: %(default)s."
    parser.add_argument("--limit", type=limit, default=100, metavar="N", help=help_text)
    add_format(parser, "table", "json")


def run(command: BaseCommand, manager: LockManager, options: dict[str, Any]) -> None:
    events = matching_events(manager, options)
    if options["format"] == "json":
        write_json(command, map(record_facts, events))
    elif events:
        write_events(command, events)
    else:
        command.stdout.write("No event matches." if conf.history else "No history is kept.")


def matching_events(manager: LockManager, options: dict[str, Any]) -> Sequence[Event]:
    outcomes, has_name = options["outcome"] or OUTCOMES, matcher(options["pattern"])

    def matches(event: Event) -> bool:
        return event.outcome in outcomes and has_name(event.name)

    server = servers[manager.alias]
    age = timedelta(seconds=min(options["since"], MAX_LEASE_SECONDS))
    flow = history.history(server.keys, None, options["limit"], matches=matches, age=age)
    return run_flow(server.client, flow)
