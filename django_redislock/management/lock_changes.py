"""Repeated reads of the locks for `locks watch`, and what changed between two reads."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from django_redislock.conf import conf
from django_redislock.lock_state import STALE, state_of_holding
from django_redislock.manager import LockManager
from django_redislock.snapshots import Event, Holding, LockInfo, Page
from django_redislock.text import (
    any_of,
    holder_text,
    printable,
    read_at,
    short_duration,
    task_text,
)

FIRST_EVENTS, MAX_EVENTS = 50, 3200
"""How many events a read asks for at first, and at most if all of them are new."""


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


@dataclass(frozen=True, slots=True)
class Reading:
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
        page = self.manager.page(self.pattern, stop=self.limit)
        is_first = self._page is None
        reading = Reading(is_first, page, list(self._ended()), list(self._changed(page)))
        self._page = page
        return reading

    def _ended(self) -> Iterator[Change]:
        """Yield the new events, the oldest first, without those from before the last read."""
        before, limit = self._events, FIRST_EVENTS
        events = self.manager.history(limit=limit)
        while before and len(events) == limit < MAX_EVENTS and events[-1].at > before[0].at:
            limit *= 4
            events = self.manager.history(limit=limit)
        known = Counter(map(_event_key, before))
        # An event is not new if it is older than the events of the last read, which has a limit.
        oldest = before[-1].at if len(before) >= self._event_limit else None
        self._events, self._event_limit = events, limit
        new = []
        for event in events:
            if known[_event_key(event)]:
                known[_event_key(event)] -= 1
            elif (oldest is None or event.at > oldest) and self._matches(event):
                new.append(event)
        yield from map(_ended_change, reversed(new))

    def _matches(self, event: Event) -> bool:
        return self.pattern is None or bool(any_of((self.pattern,)).match(event.name))

    def _changed(self, page: Page) -> Iterator[Change]:
        before, now = self._page, _page_time(page)
        held, held_before = _holdings(page), _holdings(before)
        if not conf.history and _is_complete(page):
            for token, (info, holding) in held_before.items():
                if token not in held:
                    yield Change("gone", info.name, _holding_text(info, holding), now)
        # A lock that the last read left out is not new.
        since = None if before is None or _is_complete(before) else _page_time(before)
        for token, (info, holding) in held.items():
            text, acquired = _holding_text(info, holding), holding.acquired_at
            is_stale = state_of_holding(holding) is STALE
            known = held_before.get(token)
            was_stale = known is not None and state_of_holding(known[1]) is STALE
            if before is None:
                yield Change("stale" if is_stale else "held", info.name, text, acquired)
                continue
            if known is None and (since is None or acquired > since):
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


def _holdings(page: Page | None) -> dict[str, tuple[LockInfo, Holding]]:
    """Return the holds by token, without those in cooldown."""
    infos = page.infos if page else ()
    return {each.token: (info, each) for info in infos for each in info.holders if each.timeout}


def _event_key(event: Event) -> tuple[object, ...]:
    return event.name, event.outcome, event.at, event.fence_token, event.holder


def _ended_change(event: Event) -> Change:
    held = f"held {short_duration(event.held)}" if event.acquired_at else ""
    waited = f"waited {short_duration(event.waited)}" if event.waited else ""
    parts = (holder_text(event), task_text(event), held, waited)
    return Change(event.outcome, event.name, "  ".join(filter(None, parts)), event.at)


def _holding_text(info: LockInfo, holding: Holding) -> str:
    parts = (info.kind, holder_text(holding), task_text(holding), f"fence {holding.fence_token}")
    return "  ".join(filter(None, parts))
