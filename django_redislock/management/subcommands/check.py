"""`locks check`: whether locking works, and what could make it fail."""

from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...health import Health
from ...manager import LockManager
from ...text import printable
from ..arguments import add_format
from ..formatting import json_text
from ..output import checked_output, table_lines

HELP = "Check whether locking works, and what could make it fail."


def add_arguments(parser: CommandParser) -> None:
    add_format(parser, "table", "json")
    help_text = "The status from which on the exit status is 1; default: %(default)s."
    choices = ("failed", "warning")
    parser.add_argument("--fail-on", choices=choices, default="failed", help=help_text)


def run(command: BaseCommand, manager: LockManager, options: dict[str, Any]) -> None:
    health = manager.health()
    with checked_output(command):
        is_json = options["format"] == "json"
        findings = [asdict(each) | {"remedy": each.remedy} for each in health.findings]
        facts = {"alias": health.alias, "status": health.status, "findings": findings}
        command.stdout.write(json_text(facts) if is_json else as_table(health))
    statuses = {"failed", options["fail_on"]}
    bad = [f"{each.id} ({each.status})" for each in health.findings if each.status in statuses]
    if bad:
        raise CommandError(f"Locks on {health.alias!r}: {', '.join(bad)}")


def as_table(health: Health) -> str:
    """Return a line for each check, and below it the remedy if there is one."""
    rows = [("CHECK", "STATUS", "FOUND")]
    for finding in health.findings:
        rows.append((finding.id, finding.status, printable(finding.summary)))
        if finding.remedy:
            rows.append(("", "", f"Remedy: {printable(finding.remedy)}"))
    return "\n".join(table_lines(rows))
