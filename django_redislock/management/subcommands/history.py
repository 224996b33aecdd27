"""`locks history`: what became of locks lately."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_redislock.conf import conf
from django_redislock.management.arguments import limit, name
from django_redislock.management.presenting import (
    OUTCOMES,
    json_array,
    json_text,
    told_facts,
    write_events,
)
from django_redislock.manager import LockManager
from django_redislock.snapshots import Event
from django_redislock.validators import MAX_COUNT

HELP = "Show what became of locks lately, the latest first."

DEFAULT = 100


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "name", nargs="?", type=name, metavar="NAME", help="A lock's name; without one, all."
    )
    parser.add_argument(
        "--outcome",
        nargs="+",
        action="extend",
        choices=OUTCOMES,
        metavar="O",
        help=f"Only what ended so: {', '.join(OUTCOMES)}. Write it behind NAME.",
    )
    parser.add_argument(
        "--limit",
        type=limit,
        default=DEFAULT,
        metavar="N",
        help=f"At most N events; default: {DEFAULT}.",
    )
    parser.add_argument(
        "--format",
        choices=("table", "json", "jsonl"),
        default="table",
        help="table, for people (the default); json is one array; jsonl a line for each event.",
    )


def run(command: BaseCommand, manager: LockManager, options: dict[str, Any]) -> None:
    events = latest(manager, options["name"], options["outcome"], options["limit"])
    if options["format"] == "json":
        for part in json_array(map(told_facts, events)):
            command.stdout.write(part, ending="")
    elif options["format"] == "jsonl":
        for event in events:
            command.stdout.write(json_text(told_facts(event)))
    elif events:
        write_events(command, events)
    else:
        command.stdout.write("No history." if conf.history else "No history is kept.")


def latest(
    manager: LockManager, name: str | None, outcomes: list[str] | None, limit: int
) -> list[Event]:
    """Return the latest `limit` events of these outcomes, looking back as far as it takes."""
    asked = limit
    while True:
        events = manager.history(name, asked)
        wanted = [event for event in events if not outcomes or event.outcome in outcomes]
        if len(wanted) >= limit or len(events) < asked or asked == MAX_COUNT:
            return wanted[:limit]
        asked = min(asked * 10, MAX_COUNT)
