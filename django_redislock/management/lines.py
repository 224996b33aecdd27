"""`locks watch` without a full screen: a line for each thing that changes."""

import select
import time

from django.core.management.base import BaseCommand

from django_redislock.management.formatting import moment_text, short_moment_text
from django_redislock.management.output import Paint, plain, write
from django_redislock.management.watching import (
    Change,
    Look,
    Watcher,
    changes,
    held_already,
    try_look,
)


def watch_lines(command: BaseCommand, watcher: Watcher, interval: float) -> None:
    """Print until a signal or a closed pipe ends it."""
    before, away = None, ""
    while pause_until_next(command, interval if before or away else 0):
        look, trouble = try_look(watcher.look)
        if trouble and not away:
            tell(command, Change("away", "Redis", trouble))
        if look is None:
            away = trouble
            continue
        if away:
            tell(command, Change("back", "Redis", ""))
        away = ""
        tell_changes(command, before, look)
        before = look


def tell_changes(command: BaseCommand, before: Look | None, after: Look) -> None:
    for change in held_already(after) if before is None else changes(before, after):
        tell(command, change)


def tell(command: BaseCommand, change: Change) -> None:
    moment = short_moment_text if command.stdout.isatty() else moment_text
    write(command, change.line(moment(change.at)), paint_of(command, change))
    command.stdout.flush()


def paint_of(command: BaseCommand, change: Change) -> Paint:
    paints = {
        "taken": command.style.SUCCESS,
        "waiting": command.style.WARNING,
        "expired": command.style.WARNING,
        "stale": command.style.ERROR,
        "lost": command.style.ERROR,
        "forced": command.style.ERROR,
        "away": command.style.ERROR,
    }
    return paints.get(change.what, plain)


def pause_until_next(command: BaseCommand, seconds: float) -> bool:
    """Wait, and say whether anybody still reads: a pipe whose reader has left ends the wait."""
    try:
        descriptor = command.stdout.fileno()
    except (AttributeError, OSError):  # as of a StringIO
        time.sleep(seconds)
        return True
    poll = select.poll()
    poll.register(descriptor, 0)
    return not poll.poll(seconds * 1000)
