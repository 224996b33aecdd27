"""Find the changes between two reads of the locks, for `locks watch`."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from ..lock_state import STALE, state_of_holding
from ..manager import LockManager
from ..snapshots import Event, Holding, LockInfo, Page
from ..text import any_of, holder_text, printable, short_duration, task_text

FIRST_EVENTS, MAX_EVENTS = 50, 3200
"""How many events a read asks for at first, and at most if all of them are new."""


@dataclass(frozen=True, slots=True)
class Change:
    what: str
    """``held``, ``waiting``, ``stale``, ..., or the outcome of an event."""

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
        self._has_all_events = True

    def read(self) -> Reading:
        """Read the locks and the history.

        Raises:
            RedisError: Redis is unreachable.
        """
        page, before = self.manager.page(self.pattern, stop=self.limit), self._page
        ended = [*map(_ended_change, self._new_events())]
        self._page = page
        return Reading(before is None, page, ended, [*_changes(before, page)])

    def _new_events(self) -> list[Event]:
        """Return the matching events that the last read did not have, the oldest first."""
        before, limit = self._events, FIRST_EVENTS
        events = self.manager.history(limit=limit)
        while before and len(events) == limit < MAX_EVENTS and events[-1].at > before[0].at:
            limit *= 4
            events = self.manager.history(limit=limit)
        # An event is not new if it is older than the events of the last read, which has a limit.
        oldest = None if self._has_all_events else before[-1].at
        matches = any_of((self.pattern or "*",)).match
        known = Counter(map(_event_key, before))
        new = []
        for event in events:
            key = _event_key(event)
            if known[key]:
                known[key] -= 1
            elif matches(event.name) and (oldest is None or event.at > oldest):
                new.append(event)
        self._events, self._has_all_events = events, len(events) < limit
        return new[::-1]


def _event_key(event: Event) -> tuple[object, ...]:
    return event.name, event.outcome, event.at, event.fence_token, event.holder


def _changes(before: Page | None, page: Page) -> Iterator[Change]:
    """Yield what is different from the page before, except for events."""
    known = {each.token: each for info in before.infos for each in info.holders} if before else {}
    waiters = {info.name: info.waiters for info in before.infos} if before else {}
    for info in page.infos:
        for holding in info.holders:
            if not holding.timeout:  # in cooldown
                continue
            text, is_stale = _hold_text(info, holding), state_of_holding(holding) is STALE
            last = known.get(holding.token)
            was_stale = last is not None and state_of_holding(last) is STALE
            if last is None:
                yield Change("held", info.name, text, holding.acquired_at)
            if is_stale and not was_stale:
                left = short_duration(holding.ttl)
                yield Change("stale", info.name, f"{text}  {left} left")
            elif was_stale and not is_stale:
                yield Change("renewed", info.name, text)
        if info.waiters and info.waiters != waiters.get(info.name):
            text = "1 waits" if info.waiters == 1 else f"{info.waiters} wait"
            yield Change("waiting", info.name, text)


def _ended_change(event: Event) -> Change:
    held = f"held {short_duration(event.held)}" if event.acquired_at else ""
    waited = f"waited {short_duration(event.waited)}" if event.waited else ""
    parts = holder_text(event), task_text(event), held, waited
    return Change(event.outcome, event.name, "  ".join(filter(None, parts)), event.at)


def _hold_text(info: LockInfo, holding: Holding) -> str:
    parts = info.kind, holder_text(holding), task_text(holding), f"fence {holding.fence_token}"
    return "  ".join(filter(None, parts))
