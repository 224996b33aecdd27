"""`locks watch`: the locks as they come and go, on a full screen or line by line."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_redislock.management.arguments import add_pattern, interval, limit
from django_redislock.management.lines import watch_lines
from django_redislock.management.watching import Watcher
from django_redislock.manager import LockManager

HELP = "Watch locks come and go, on a full screen (q ends it) or, without a terminal, in lines."

INTERVAL, LIMIT = 2.0, 200
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def add_arguments(parser: CommandParser) -> None:
    add_pattern(parser)
    parser.add_argument(
        "--interval",
        type=interval,
        default=INTERVAL,
        metavar="S",
        help=f"Look again every S seconds; default: {INTERVAL:g}.",
    )
    parser.add_argument(
        "--limit",
        type=limit,
        default=LIMIT,
        metavar="N",
        help=f"At most N locks, those whose leases end first; default: {LIMIT}.",
    )


def run(command: BaseCommand, manager: LockManager, options: dict[str, Any]) -> None:
    watcher = Watcher(manager, options["pattern"], options["limit"])
    with suppress(KeyboardInterrupt), ended_by_signals():
        if not wants_screen(command):
            watch_lines(command, watcher, options["interval"])
        elif (watch_screen := find_screen()) is None:
            command.stderr.write(
                "For a full screen: pip install 'django-redislock[terminal]'",
                style_func=command.style.NOTICE,
            )
            watch_lines(command, watcher, options["interval"])
        else:
            watch_screen(command, watcher, options["interval"])


def wants_screen(command: BaseCommand) -> bool:
    return command.stdout.isatty() and os.environ.get("TERM") not in (None, "", "dumb")


def find_screen() -> Any:
    """Return what draws the screen, or None if it is not installed."""
    try:
        from django_redislock.management.screen import watch_screen
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "rich":
            raise
        return None
    return watch_screen


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM is what Ctrl-C is. The second finds the screen being put back, and is ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.getsignal(each) for each in SIGNALS}
    for each in SIGNALS:
        if before[each] is not signal.SIG_IGN:
            signal.signal(each, _end)
    try:
        yield
    finally:
        for each in SIGNALS:
            signal.signal(each, before[each])


def _end(*_: object) -> None:
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt
