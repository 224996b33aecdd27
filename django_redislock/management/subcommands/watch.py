"""`locks watch`: shows changes of the locks, on the full screen or line by line."""

import os
import select
import signal
import sys
import threading
import time
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from redis.exceptions import RedisError

from django_redislock.management.arguments import add_pattern, interval, limit
from django_redislock.management.formatting import moment_text, paint_of, short_moment_text
from django_redislock.management.lock_changes import Change, LockWatcher
from django_redislock.management.output import write
from django_redislock.manager import LockManager
from django_redislock.text import error_text

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
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and fills_screen(command):
        try:
            from django_redislock.management import watch_app
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("textual", "rich"):
                raise
            advice = "For a full screen: pip install 'django-redislock[terminal]'"
            command.stderr.write(advice, style_func=command.style.NOTICE)
        else:
            if options["no_color"]:
                os.environ["NO_COLOR"] = "1"  # textual reads it
            watch_app.watch_screen(watcher, options["interval"])
            return
    if is_main:
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        watch_lines(command, watcher, options["interval"])
    except KeyboardInterrupt:
        pass
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before)


def fills_screen(command: BaseCommand) -> bool:
    # textual reads stdin and draws on stderr.
    streams = sys.__stdin__, command.stdout, sys.__stderr__
    is_terminal = all(each and each.isatty() for each in streams)
    return is_terminal and os.environ.get("TERM", "dumb") not in ("", "dumb")


def watch_lines(command: BaseCommand, watcher: LockWatcher, interval: float) -> None:
    """Print a line for each change, until a signal or a closed pipe ends it."""
    moment = short_moment_text if command.stdout.isatty() else moment_text
    trouble, seconds = "", 0.0
    while pause(command, seconds):
        seconds, before = interval, trouble
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


def pause(command: BaseCommand, seconds: float) -> bool:
    """Wait, and return whether stdout still has a reader. A closed pipe ends the wait."""
    try:
        descriptor = command.stdout.fileno()
    except (AttributeError, OSError):  # such as a StringIO
        time.sleep(seconds)
        return True
    poll = select.poll()
    poll.register(descriptor, 0)
    return not poll.poll(seconds * 1000)
