"""`locks watch`: the locks and the latest events, on the full screen."""

import os
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...manager import LockManager
from ..arguments import add_pattern, interval

HELP = "Watch the locks on the full screen of a terminal. It needs textual. q ends it."


def add_arguments(parser: CommandParser) -> None:
    add_pattern(parser)
    help_text = "Read the locks every S seconds; default: %(default)g."
    parser.add_argument("--interval", type=interval, default=2.0, metavar="S", help=help_text)


def run(command: BaseCommand, manager: LockManager, options: dict[str, Any]) -> None:
    # textual reads stdin and draws on stderr.
    streams = sys.__stdin__, command.stdout, sys.__stderr__
    is_dumb = os.environ.get("TERM", "dumb") in ("", "dumb")
    if is_dumb or not all(each and each.isatty() for each in streams):
        raise CommandError("locks watch needs a terminal. Use locks list.")
    try:
        from ..watch_app import WatchApp
    except ModuleNotFoundError:
        text = "locks watch needs textual: pip install 'django-redislock[terminal]'"
        raise CommandError(text) from None
    if error := WatchApp(manager, options["pattern"], options["interval"]).run():
        raise error
