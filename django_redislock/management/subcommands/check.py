"""`locks check`: whether locks work now, and whether the server is fit for them."""

import json
from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_redislock.health import Health
from django_redislock.management.arguments import NOT_DONE
from django_redislock.management.output import aligned, tolerate_closed_pipe, write
from django_redislock.manager import LockManager
from django_redislock.text import printable

HELP = "Check whether locks work now, and whether the server is fit for them."

HEADER = ("CHECK", "STATUS", "FOUND")


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "--format", choices=("table", "json"), default="table", help="json has all numbers."
    )
    parser.add_argument(
        "--fail-on",
        choices=("failed", "warning"),
        default="failed",
        help="What makes the exit status 1; default: failed.",
    )


def run(command: BaseCommand, manager: LockManager, options: dict[str, Any]) -> None:
    health = manager.health()
    with tolerate_closed_pipe(command):
        for line in [as_json(health)] if options["format"] == "json" else as_table(health):
            write(command, line)
    refuse(health, {"failed", options["fail_on"]})


def refuse(health: Health, statuses: set[str]) -> None:
    """Raise `CommandError`, naming the findings, if any is of these statuses."""
    bad = [f"{each.id} ({each.status})" for each in health.findings if each.status in statuses]
    if bad:
        raise CommandError(f"Locks on {health.alias!r}: {', '.join(bad)}", returncode=NOT_DONE)


def as_table(health: Health) -> Iterator[str]:
    rows = [
        (each.id, each.status, printable(f"{each.summary} {each.remedy}".rstrip()))
        for each in health.findings
    ]
    return aligned([HEADER, *rows])


def as_json(health: Health) -> str:
    """Return one JSON object. Non-ASCII is escaped, so that nothing in it controls a terminal."""
    findings = [
        {
            "id": each.id,
            "status": each.status,
            "summary": each.summary,
            "remedy": each.remedy,
            "facts": dict(each.facts),
        }
        for each in health.findings
    ]
    facts = {"alias": health.alias, "status": health.status, "findings": findings}
    return json.dumps(facts, indent=2)
