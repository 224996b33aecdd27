"""The dashboard: what the locks of one cache alias do now, and did in the last minutes.

It is made in three steps: `read()` asks Redis, `rank()` decides what is shown, and `context()`
presents it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

from django.http import HttpRequest

from ..advice import deadlock_text
from ..backends import servers
from ..conf import conf
from ..engine import history
from ..engine.history import Recent
from ..engine.runners import run
from ..lock_state import (
    STALE,
    ProcessLocks,
    by_process,
    current_holds,
    is_queued,
    state_of,
    state_of_holding,
)
from ..manager import LockManager
from ..models import ActiveLock
from ..snapshots import Event, LockInfo, Rates
from ..text import read_at
from ..waits import Dependency, read_dependencies
from .queryset import LockQuerySet
from .reading import known_aliases
from .timeline import legend, outcome, was_held

WINDOWS_MINUTES = (5, 15, 60)  # the periods that a user can choose
MAX_LISTED = 30  # locks: first those with the longest waits, then those that were held longest
MAX_PROCESSES = 10  # that are listed: first those with the most stale locks
MAX_READ = 1000  # locks: those whose leases end first
MAX_MENTIONED = 1000  # other locks that are read, because of their events
MAX_EVENTS = 3000  # of each stream. To read and parse so many takes 0.1 s of CPU
MAX_PROBLEMS = 10  # that are listed: the latest
PROBLEMS = ("expired", "forced", "lost", "killed")  # outcomes


# Reading


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was read of one cache alias: of the locks that the user may see."""

    now: datetime  # by the clock of the server
    since: datetime  # the beginning of the chosen period
    total: int  # how many locks are active
    is_complete: bool  # whether all active locks were read
    infos: dict[str, LockInfo]  # by name
    events: list[Event]  # of the period, and problems of an hour. The latest come first
    recent: Recent  # how far back the events go
    rates: Rates  # of all locks
    deadlocks: list[list[Dependency]]


def read(manager: LockManager, visible: LockQuerySet, minutes: int) -> Snapshot:
    page = manager.page(stop=MAX_READ)
    rates = manager.rates()
    recent = _recent_events(manager, minutes)
    infos = {info.name: info for info in page.infos}
    is_complete = page.total <= len(infos)
    mentioned = set(map(attrgetter("name"), recent.events))
    if not is_complete:
        infos |= manager.get_many([*mentioned - infos.keys()][:MAX_MENTIONED])
    now = _now(page.infos, rates)
    shown = {
        name
        for name in infos.keys() | mentioned
        if visible.matches(ActiveLock.of(name, manager.alias, infos.get(name)))
    }
    infos = {name: info for name, info in infos.items() if name in shown}
    return Snapshot(
        now=now,
        since=now - timedelta(minutes=minutes),
        total=len(infos) if visible.tests else page.total,
        is_complete=is_complete,
        infos=infos,
        events=[event for event in recent.events if event.name in shown],
        recent=recent,
        rates=rates,
        deadlocks=read_dependencies(manager, infos.values()).deadlocks(),
    )


def _recent_events(manager: LockManager, minutes: int) -> Recent:
    """Return the events of these minutes, and problems of an hour."""
    if not conf.history:
        return Recent((), None, None)
    server = servers[manager.alias]
    window = timedelta(minutes=minutes + 1)
    hour = timedelta(minutes=history.RATE_MINUTES + 1)
    return run(server.client, history.recent(server.keys, window, hour, MAX_EVENTS))


def _now(infos: Sequence[LockInfo], rates: Rates) -> datetime:
    """Return the time of the server. Without a holder, only its minute is known."""
    times = [read_at(info.first) for info in infos if info.first]
    minute = rates.minutes[-1]
    estimated = min(max(datetime.now(UTC), minute), minute + timedelta(minutes=1))
    return next(iter(times), estimated)


# Ranking


@dataclass(frozen=True, slots=True)
class Activity:
    """What one lock does, and did in the period."""

    name: str
    waiters: int
    waiting_for: float  # seconds. The first of the present waiters has waited longest
    waits: int  # also those that are not over. An acquisition without a wait does not count
    longest_wait: float  # seconds
    holds: int
    held_seconds: float
    counts: Counter[str]  # of outcomes, and of the states of its holders

    @property
    def rank(self) -> tuple[float, float, int, float]:
        """A sort key: first the waits that are not over yet."""
        refusals = self.counts["refused"] + self.counts["skipped"]
        return self.waiting_for, self.longest_wait, refusals, self.held_seconds

    @property
    def outcomes(self) -> list[Any]:
        return [(each, self.counts[each.what]) for each in legend(self.counts)]


@dataclass(frozen=True, slots=True)
class Ranking:
    """What is shown."""

    activities: list[Activity]  # of all locks that did anything
    processes: list[ProcessLocks]
    problems: list[Event]


def rank(snapshot: Snapshot) -> Ranking:
    events_of: dict[str, list[Event]] = defaultdict(list)
    for event in snapshot.events:
        if event.at >= snapshot.since:
            events_of[event.name].append(event)
    activities = [
        activity(name, events_of[name], snapshot)
        for name in dict.fromkeys([*snapshot.infos, *events_of])
    ]
    start = snapshot.rates.minutes[0]
    return Ranking(
        activities=sorted(activities, key=attrgetter("rank"), reverse=True),
        processes=by_process(snapshot.infos.values())[:MAX_PROCESSES],
        problems=[e for e in snapshot.events if e.outcome in PROBLEMS and e.at >= start],
    )


def activity(name: str, events: list[Event], snapshot: Snapshot) -> Activity:
    info = snapshot.infos.get(name)
    holders = current_holds(info)
    running = [holding for holding in holders if not is_queued(holding)]
    spans = [(event.acquired_at or event.at, min(event.at, snapshot.now)) for event in events]
    spans += [(holding.acquired_at, snapshot.now) for holding in running]
    waiters = info.waiters if info else 0
    waiting_for = info.longest_wait if info else 0.0
    waited = [*filter(None, map(attrgetter("waited"), (*events, *holders)))]
    states = (state_of_holding(holding).code for holding in holders)
    return Activity(
        name=name,
        waiters=waiters,
        waiting_for=waiting_for,
        waits=waiters + len(waited),
        longest_wait=max([waiting_for, *waited]),
        holds=sum(map(was_held, events)) + len(running),
        held_seconds=_covered(spans, snapshot.since),
        counts=Counter([*map(attrgetter("outcome"), events), *states]),
    )


def _covered(spans: Iterable[tuple[datetime, datetime]], since: datetime) -> float:
    """Return the seconds that spans cover. A time with several holders counts once."""
    seconds = 0.0
    for start, end in sorted(spans):
        seconds += max((end - max(start, since)).total_seconds(), 0)
        since = max(since, end)
    return seconds


# Presenting


def context(request: HttpRequest, manager: LockManager, visible: LockQuerySet) -> dict[str, Any]:
    """Return what the template of the page shows, of the locks that the user may see."""
    windows = {str(each): each for each in WINDOWS_MINUTES}
    minutes = windows.get(request.GET.get("minutes", ""), WINDOWS_MINUTES[1])
    snapshot = read(manager, visible, minutes)
    ranking = rank(snapshot)
    infos = snapshot.infos.values()
    listed = ranking.activities[:MAX_LISTED]
    problems = ranking.problems[:MAX_PROBLEMS]
    totals = ((outcome(what), sum(found)) for what, found in snapshot.rates.counts.items())
    return {
        "minutes": minutes,
        "windows": WINDOWS_MINUTES,
        "now": snapshot.now,
        "aliases": known_aliases(),
        "alias": manager.alias,
        "total": snapshot.total,
        "waiting": sum(info.waiters for info in infos),
        "stale_locks": sum(state_of(info) is STALE for info in infos),
        # Others can have waiters, be stale or be visible.
        "or_more": "" if snapshot.is_complete else "+",
        # The counts are of all locks, so a user who may not see all locks does not see them.
        "totals": () if visible.tests else [*totals],
        "deadlocks": [(deadlock_text(len(each)), each) for each in snapshot.deadlocks],
        "troubles": problems,
        "more_troubles": len(ranking.problems) - len(problems),
        "processes": ranking.processes,
        "activities": listed,
        "more_activities": len(ranking.activities) - len(listed),
        "top_wait": max((lock.longest_wait for lock in listed), default=0),
        "recent": snapshot.recent,
        "is_narrowed": bool(visible.tests),
        "kept": conf.history,
    }
