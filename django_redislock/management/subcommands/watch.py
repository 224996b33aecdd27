"""`locks watch`: shows changes of the locks, on the full screen or line by line."""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from django.core.management.base import BaseCommand, CommandParser
from redis.exceptions import RedisError

from ...conf import conf
from ...lock_state import STALE, state_of_holding
from ...manager import LockManager
from ...snapshots import Event, Holding, LockInfo, Page
from ...text import any_of, error_text, holder_text, printable, read_at, short_duration, task_text
from ..arguments import add_pattern, interval, limit
from ..formatting import moment_text, paint_of, short_moment_text
from ..output import write

HELP = "Watch locks change, on the full screen (q ends it) or, without a terminal, in lines."

DEFAULT_INTERVAL_SECONDS, DEFAULT_LIMIT = 2.0, 200

FIRST_EVENTS, MAX_EVENTS = 50, 3200
"""How many events a read asks for at first, and at most if all of them are new."""


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
            from .. import watch_app
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


@dataclass(frozen=True, slots=True)
class Change:
    what: str
    """``held``, ``taken``, ``waiting``, ``stale``, ..., or the outcome of an event."""

    name: str
    text: str
    at: datetime = field(default_factory=partial(datetime.now, UTC))
    """The time by the clock of Redis. If it is unknown, the local time of the read."""

    def line(self, moment: str) -> str:
        """Return the change on one line that starts with `moment`."""
        return "  ".join((moment, f"{self.what:8}", printable(self.name), self.text)).rstrip()


class Reading(NamedTuple):
    """One read of the locks."""

    is_first: bool
    page: Page
    ended: list[Change]
    """The new events since the last read. In the first reading, the latest events."""

    changed: list[Change]
    """The other changes since then. In the first reading, the holders and the queues."""


class LockWatcher:
    """Reads the locks of one cache alias that match a pattern."""

    def __init__(self, manager: LockManager, pattern: str | None, limit: int) -> None:
        self.manager = manager
        self.pattern = pattern
        self.limit = limit
        self._page: Page | None = None
        self._events: tuple[Event, ...] = ()
        self._event_limit = FIRST_EVENTS

    def read(self) -> Reading:
        """Read the locks and the history.

        Raises:
            RedisError: Redis is unreachable.
        """
        page, before = self.manager.page(self.pattern, stop=self.limit), self._page
        ended = [*map(_ended_change, self._new_events())]
        reading = Reading(before is None, page, ended, [*_changes(before, page)])
        self._page = page
        return reading

    def _new_events(self) -> list[Event]:
        """Return the matching events that the last read did not have, the oldest first."""
        before, limit = self._events, FIRST_EVENTS
        events = self.manager.history(limit=limit)
        while before and len(events) == limit < MAX_EVENTS and events[-1].at > before[0].at:
            limit *= 4
            events = self.manager.history(limit=limit)
        known = set(map(_event_key, before))
        # An event is not new if it is older than the events of the last read, which has a limit.
        oldest = before[-1].at if len(before) >= self._event_limit else None
        self._events, self._event_limit = events, limit
        matches = any_of((self.pattern or "*",)).match
        return [
            event
            for event in reversed(events)
            if _event_key(event) not in known and (oldest is None or event.at > oldest)
            if matches(event.name)
        ]


def _changes(before: Page | None, page: Page) -> Iterator[Change]:
    """Yield what is different from the page before, except for events."""
    now, held, known = _page_time(page), _holds(page), _holds(before)
    if not conf.history and _is_complete(page):
        for token, (info, holding) in known.items():
            if token not in held:
                yield Change("gone", info.name, _hold_text(info, holding), now)
    # A lock that the last read left out is not new.
    since = _page_time(before) if before and not _is_complete(before) else None
    for token, (info, holding) in held.items():
        text, acquired = _hold_text(info, holding), holding.acquired_at
        is_stale = state_of_holding(holding) is STALE
        was_stale = token in known and state_of_holding(known[token][1]) is STALE
        if before is None:
            yield Change("stale" if is_stale else "held", info.name, text, acquired)
            continue
        if token not in known and (since is None or acquired > since):
            yield Change("taken", info.name, text, acquired)
        if is_stale and not was_stale:
            left = short_duration(holding.ttl)
            yield Change("stale", info.name, f"{text}  {left} left", now)
        elif was_stale and not is_stale:
            yield Change("renewed", info.name, text, now)
    waiters = {info.name: info.waiters for info in before.infos} if before else {}
    for info in page.infos:
        if info.waiters and info.waiters != waiters.get(info.name):
            text = "1 waits" if info.waiters == 1 else f"{info.waiters} wait"
            yield Change("waiting", info.name, text, now)


def _is_complete(page: Page) -> bool:
    return len(page.infos) >= page.total


def _page_time(page: Page) -> datetime:
    """Return when the page was read, by the clock of Redis if there is a holder."""
    holdings = [info.first for info in page.infos if info.first]
    return max(map(read_at, holdings), default=datetime.now(UTC))


def _holds(page: Page | None) -> dict[str, tuple[LockInfo, Holding]]:
    """Return the holds by token, without those in cooldown."""
    infos = page.infos if page else ()
    return {each.token: (info, each) for info in infos for each in info.holders if each.timeout}


def _event_key(event: Event) -> tuple[object, ...]:
    return event.name, event.outcome, event.at, event.fence_token, event.holder


def _ended_change(event: Event) -> Change:
    held = f"held {short_duration(event.held)}" if event.acquired_at else ""
    waited = f"waited {short_duration(event.waited)}" if event.waited else ""
    parts = holder_text(event), task_text(event), held, waited
    return Change(event.outcome, event.name, "  ".join(filter(None, parts)), event.at)


def _hold_text(info: LockInfo, holding: Holding) -> str:
    parts = info.kind, holder_text(holding), task_text(holding), f"fence {holding.fence_token}"
    return "  ".join(filter(None, parts))


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
