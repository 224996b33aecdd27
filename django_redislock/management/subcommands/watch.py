"""`locks watch`: the locks and the latest events, on the full screen."""

import os
import sys
from contextlib import suppress
from datetime import UTC, datetime
from time import sleep
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from redis.exceptions import RedisError

from ...manager import LockManager
from ...text import error_text
from ..arguments import add_pattern, interval, limit
from ..formatting import moment_text
from . import list

HELP = "Watch the locks on the full screen (q ends it). Without a terminal, list them repeatedly."


def add_arguments(parser: CommandParser) -> None:
    add_pattern(parser)
    help_text = "Read the locks every S seconds; default: %(default)g."
    parser.add_argument("--interval", type=interval, default=2.0, metavar="S", help=help_text)
    help_text = "At most N locks, whose leases expire first; default: %(default)s."
    parser.add_argument("--limit", type=limit, default=200, metavar="N", help=help_text)


def run(command: BaseCommand, manager: LockManager, options: dict[str, Any]) -> None:
    # textual reads stdin and draws on stderr.
    streams = sys.__stdin__, command.stdout, sys.__stderr__
    is_terminal = all(each and each.isatty() for each in streams)
    if is_terminal and os.environ.get("TERM", "dumb") not in ("", "dumb"):
        try:
            from ..watch_app import WatchApp
        except ModuleNotFoundError:
            advice = "For a full screen: pip install 'django-redislock[terminal]'"
            command.stderr.write(advice, style_func=command.style.NOTICE)
        else:
            if options["no_color"]:
                os.environ["NO_COLOR"] = "1"  # textual reads it
            app = WatchApp(manager, options["pattern"], options["limit"], options["interval"])
            if error := app.run():
                raise error
            return
    write, style = command.stdout.write, command.style
    with suppress(KeyboardInterrupt):
        while True:
            write(moment_text(datetime.now(UTC)), style.MIGRATE_HEADING)
            try:
                list.run(command, manager, options | {"format": "table"})
            except RedisError as error:
                write(f"Redis is unreachable: {error_text(error)}", style.ERROR)
            command.stdout.flush()
            sleep(options["interval"])
