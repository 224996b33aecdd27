"""`locks watch`: shows changes of the locks, on the full screen or line by line."""

import os
import sys
from contextlib import suppress
from time import sleep
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from redis.exceptions import RedisError

from ...manager import LockManager
from ...text import error_text
from ..arguments import add_pattern, interval, limit
from ..formatting import moment_text, paint_of, short_moment_text
from ..output import write
from ..watcher import Change, LockWatcher

HELP = "Watch locks change, on the full screen (q ends it) or, without a terminal, in lines."

DEFAULT_INTERVAL_SECONDS, DEFAULT_LIMIT = 2.0, 200


def add_arguments(parser: CommandParser) -> None:
    add_pattern(parser)
    parser.add_argument(
        "--interval",
        type=interval,
        default=DEFAULT_INTERVAL_SECONDS,
        metavar="S",
        help=f"Read the locks every S seconds; default: {DEFAULT_INTERVAL_SECONDS:g}.",
    )
    parser.add_argument(
        "--limit",
        type=limit,
        default=DEFAULT_LIMIT,
        metavar="N",
        help=f"At most N locks, whose leases expire first; default: {DEFAULT_LIMIT}.",
    )


def run(command: BaseCommand, manager: LockManager, options: dict[str, Any]) -> None:
    watcher = LockWatcher(manager, options["pattern"], options["limit"])
    if fills_screen(command):
        try:
            from ..watch_app import watch_screen
        except ModuleNotFoundError:
            advice = "For a full screen: pip install 'django-redislock[terminal]'"
            command.stderr.write(advice, style_func=command.style.NOTICE)
        else:
            if options["no_color"]:
                os.environ["NO_COLOR"] = "1"  # textual reads it
            watch_screen(watcher, options["interval"])
            return
    with suppress(KeyboardInterrupt):
        watch_lines(command, watcher, options["interval"])


def fills_screen(command: BaseCommand) -> bool:
    # textual reads stdin and draws on stderr.
    streams = sys.__stdin__, command.stdout, sys.__stderr__
    is_terminal = all(each and each.isatty() for each in streams)
    return is_terminal and os.environ.get("TERM", "dumb") not in ("", "dumb")


def watch_lines(command: BaseCommand, watcher: LockWatcher, interval: float) -> None:
    """Print a line for each change, until Ctrl-C or a closed pipe ends it."""
    moment = short_moment_text if command.stdout.isatty() else moment_text
    trouble = ""
    while True:
        before = trouble
        try:
            reading, trouble = watcher.read(), ""
        except RedisError as error:
            trouble = error_text(error) or type(error).__name__
            changes = [] if before else [Change("away", "Redis", trouble)]
        else:
            changes = [Change("back", "Redis", "")] if before else []
            changes += [] if reading.is_first else reading.ended
            changes += reading.changed
        for change in changes:
            line, paint = change.line(moment(change.at)), paint_of(change.what, command.style)
            write(command, line, paint)
        command.stdout.flush()
        sleep(interval)
