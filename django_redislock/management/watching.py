"""Repeated snapshots of the locks for `locks watch`, and the changes between them."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TypeAlias

from redis.exceptions import RedisError

from django_redislock.conf import conf
from django_redislock.manager import LockManager
from django_redislock.snapshots import Event, Holding, LockInfo, Page
from django_redislock.text import (
    any_of,
    error_text,
    holder_text,
    printable,
    read_at,
    short_duration,
    task_text,
)

EVENTS, MOST_EVENTS = 50, 3200
"""How many events a look asks for: at first, and at most if more than that are new."""

EventKey: TypeAlias = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """The locks at one moment."""

    page: Page
    events: tuple[Event, ...]
    """The latest of those that match, the latest first."""

    since: datetime | None = None
    """How far back it saw of all events; None: to the first that is known."""

    @property
    def is_whole(self) -> bool:
        """Whether these are all locks that match."""
        return len(self.page.infos) >= self.page.total

    @property
    def read_at(self) -> datetime:
        """When it was, by Redis's clock if anything is held that tells."""
        held = [info.first for info in self.page.infos if info.first]
        return max(map(read_at, held), default=datetime.now(UTC))

    def holdings(self) -> "dict[str, tuple[LockInfo, Holding]]":
        """By token, those that are held, without what only cools down."""
        return {
            holding.token: (info, holding)
            for info in self.page.infos
            for holding in info.holders
            if holding.timeout
        }


class Watcher:
    """Looks at the locks, again and again."""

    def __init__(self, manager: LockManager, pattern: str | None, limit: int) -> None:
        self.manager = manager
        self.pattern = pattern
        self.limit = limit
        self._newest: datetime | None = None

    def look(self) -> Look:
        page = self.manager.page(self.pattern, stop=self.limit)
        events = self._events()
        since = events[-1].at if len(events) >= EVENTS else None
        return Look(page, tuple(filter(self._matches, events)), since)

    def _events(self) -> tuple[Event, ...]:
        """As far back as the look before, so that none is missed in between."""
        asked = EVENTS
        events = self.manager.history(limit=asked)
        while self._is_behind(events, asked):
            asked *= 4
            events = self.manager.history(limit=asked)
        self._newest = events[0].at if events else self._newest
        return events

    def _is_behind(self, events: tuple[Event, ...], asked: int) -> bool:
        if self._newest is None or len(events) < asked or asked >= MOST_EVENTS:
            return False
        return events[-1].at > self._newest

    def _matches(self, event: Event) -> bool:
        return self.pattern is None or bool(any_of((self.pattern,)).match(event.name))


@dataclass(frozen=True, slots=True)
class Change:
    what: str
    """``taken``, ``waiting``, ``stale``, ..., or an event's outcome."""

    name: str
    told: str
    at: datetime = field(default_factory=partial(datetime.now, UTC))
    """The time by Redis's clock. If it is not known, when it was seen by the local clock."""

    def line(self, moment: str) -> str:
        """Return the change on one line, which begins with the moment."""
        return "  ".join((moment, f"{self.what:8}", printable(self.name), self.told)).rstrip()


def changes(before: Look, after: Look) -> Iterator[Change]:
    """Yield the changes between two snapshots. Ended holds come first."""
    yield from map(ended, reversed(new_events(before, after)))
    if not conf.history and after.is_whole:
        yield from _gone(before, after)
    yield from _taken(before, after)
    yield from _of_holdings(before, after)
    yield from _waiting(before, after)


def held_already(look: Look) -> Iterator[Change]:
    """Yield the holds and queues of the first snapshot."""
    for info, holding in look.holdings().values():
        what = "stale" if holding.is_stale else "held"
        yield Change(what, info.name, _who(info, holding), holding.acquired_at)
    yield from (_queue(info, look) for info in look.page.infos if info.waiters)


def new_events(before: Look, after: Look) -> list[Event]:
    """Return the new events, the latest first, without those older than the last snapshot."""
    known = Counter(map(_key, before.events))
    new = []
    for event in after.events:
        if known[_key(event)]:
            known[_key(event)] -= 1
        elif before.since is None or event.at > before.since:
            new.append(event)
    return new


def ended(event: Event) -> Change:
    held = f"held {short_duration(event.held)}" if event.acquired_at else ""
    waited = f"waited {short_duration(event.waited)}" if event.waited else ""
    parts = (holder_text(event), task_text(event), held, waited)
    return Change(event.outcome, event.name, "  ".join(filter(None, parts)), event.at)


def _key(event: Event) -> EventKey:
    return event.name, event.outcome, event.at, event.fence_token, event.holder


def _gone(before: Look, after: Look) -> Iterator[Change]:
    held = after.holdings()
    for token, (info, holding) in before.holdings().items():
        if token not in held:
            yield Change("gone", info.name, _who(info, holding), after.read_at)


def _taken(before: Look, after: Look) -> Iterator[Change]:
    known, since = before.holdings(), None if before.is_whole else before.read_at
    for token, (info, holding) in after.holdings().items():
        if token not in known and (since is None or holding.acquired_at > since):
            yield Change("taken", info.name, _who(info, holding), holding.acquired_at)


def _of_holdings(before: Look, after: Look) -> Iterator[Change]:
    known = before.holdings()
    for token, (info, holding) in after.holdings().items():
        was_stale = token in known and known[token][1].is_stale
        if holding.is_stale and not was_stale:
            left = short_duration(holding.ttl)
            yield Change("stale", info.name, f"{_who(info, holding)}  {left} left", after.read_at)
        elif was_stale and not holding.is_stale:
            yield Change("renewed", info.name, _who(info, holding), after.read_at)


def _waiting(before: Look, after: Look) -> Iterator[Change]:
    waited = {info.name: info.waiters for info in before.page.infos}
    for info in after.page.infos:
        if info.waiters and info.waiters != waited.get(info.name, 0):
            yield _queue(info, after)


def _queue(info: LockInfo, look: Look) -> Change:
    waits = "1 waits" if info.waiters == 1 else f"{info.waiters} wait"
    return Change("waiting", info.name, waits, look.read_at)


def _who(info: LockInfo, holding: Holding) -> str:
    parts = (info.kind, holder_text(holding), task_text(holding), f"fence {holding.fence_token}")
    return "  ".join(filter(None, parts))


def try_look(look: Callable[[], Look]) -> tuple[Look | None, str]:
    """Return what was seen, or why nothing could be."""
    try:
        return look(), ""
    except RedisError as error:
        return None, error_text(error) or type(error).__name__
