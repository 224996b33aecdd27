"""The dashboard: recent holders and waiters, and how often each event happened.

It is made in three steps: `read()` asks Redis, `rank()` decides what is shown, and `context()`
presents it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import nlargest
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.utils import timezone

from ..advice import deadlock_text
from ..backends import servers
from ..conf import conf
from ..engine import history
from ..engine.history import Recent
from ..engine.runners import run
from ..lock_state import STALE, current_holds, is_queued, process_of, state_of
from ..manager import LockManager, locks
from ..models import ActiveLock
from ..snapshots import Event, Holding, LockInfo, Rates
from ..text import age, printable, read_at
from ..waits import Dependency, read_dependencies
from .queryset import LockQuerySet
from .reading import aliases_of, shown_aliases
from .tasks import result_links
from .timeline import HEAD_PIXELS, Row, Scale, draw, legend, outcome, outcome_of, times, was_held

WINDOWS_MINUTES = (5, 15, 60)  # the periods that a user can choose
MIN_AXIS = timedelta(minutes=1)
MAX_DRAWN = 30  # locks: those that were held and waited for the longest
MAX_CONTENDED = 20  # locks that are listed with their waiters
MAX_PROCESSES = 10  # that are listed: first those with the most stale locks
MAX_NAMES = 100  # of the locks of each
MAX_READ = 1000  # locks: those whose leases end first
MAX_MENTIONED = 1000  # other locks that are read, because of their events
MAX_EVENTS = 3000  # of each stream. To read and parse so many takes 0.1 s of CPU
MAX_PROBLEMS = 10  # that are listed: the latest
PROBLEMS = ("expired", "forced", "lost", "killed")  # outcomes
RATE_PIXELS = 64  # the height of one series with its heading


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
    deadlock: list[Dependency]


def read(manager: LockManager, visible: LockQuerySet, minutes: int) -> Snapshot:
    page = manager.page(stop=MAX_READ)
    rates = manager.rates()
    recent = _recent_events(manager, minutes)
    infos = {info.name: info for info in page.infos}
    is_complete = page.total <= len(infos)
    if not is_complete:
        others = dict.fromkeys(event.name for event in recent.events if event.name not in infos)
        infos |= manager.get_many([*others][:MAX_MENTIONED])
    now = _now(page.infos, rates)
    names = {*infos, *(event.name for event in recent.events)}
    shown = {
        name
        for name in names
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
        deadlock=read_dependencies(manager, infos.values()).deadlock(),
    )


def _recent_events(manager: LockManager, minutes: int) -> Recent:
    """Return the events of these minutes, and problems of an hour."""
    if not conf.history:
        return Recent((), None, None)
    server = servers[manager.alias]
    window, hour = (timedelta(minutes=each + 1) for each in (minutes, history.RATE_MINUTES))
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
    """What happened to one lock in the period, and its present holders."""

    name: str
    events: list[Event]
    holders: list[Holding]
    waiters: int
    waiting_for: float  # seconds. The first of the present waiters has waited longest
    holds: int
    held_seconds: float
    counts: Counter[str]  # of outcomes
    waits: list[float]  # seconds. An acquisition without a wait does not count

    @property
    def longest_wait(self) -> float:
        return max(self.waits, default=0.0)

    @property
    def total_wait(self) -> float:
        return sum(self.waits)

    @property
    def busy(self) -> float:
        return self.held_seconds + self.total_wait

    @property
    def contention(self) -> tuple[float, float, int]:
        """A sort key: first the waits that are not over yet."""
        refusals = self.counts["refused"] + self.counts["skipped"]
        return self.waiting_for, self.longest_wait, refusals

    @property
    def outcomes(self) -> list[Any]:
        return [(each, self.counts[each.what]) for each in legend(self.counts)]


@dataclass(frozen=True, slots=True)
class Ranking:
    """What is shown."""

    activities: int  # how many locks did anything
    busiest: list[Activity]
    contended: list[Activity]
    processes: list[SimpleNamespace]
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
    contended = [lock for lock in activities if any(lock.contention)]
    start = snapshot.rates.minutes[0]
    return Ranking(
        activities=len(activities),
        busiest=nlargest(MAX_DRAWN, activities, key=attrgetter("busy")),
        contended=nlargest(MAX_CONTENDED, contended, key=attrgetter("contention")),
        processes=by_process(snapshot.infos.values()),
        problems=[e for e in snapshot.events if e.outcome in PROBLEMS and e.at >= start],
    )


def activity(name: str, events: list[Event], snapshot: Snapshot) -> Activity:
    info = snapshot.infos.get(name)
    holders = current_holds(info)
    running = [holding for holding in holders if not is_queued(holding)]
    spans = [(event.acquired_at or event.at, min(event.at, snapshot.now)) for event in events]
    spans += [(holding.acquired_at, snapshot.now) for holding in running]
    waiting_for = info.longest_wait if info else 0.0
    waits = [waiting_for, *map(attrgetter("waited"), (*events, *holders))]
    return Activity(
        name=name,
        events=events,
        holders=holders,
        waiters=info.waiters if info else 0,
        waiting_for=waiting_for,
        holds=sum(map(was_held, events)) + len(running),
        held_seconds=_covered(spans, snapshot.since),
        counts=Counter([*(event.outcome for event in events), *map(outcome_of, holders)]),
        waits=[seconds for seconds in waits if seconds > 0],
    )


def _covered(spans: Iterable[tuple[datetime, datetime]], since: datetime) -> float:
    """Return the seconds that spans cover. A time with several holders counts once."""
    seconds = 0.0
    for start, end in sorted(spans):
        seconds += max((end - max(start, since)).total_seconds(), 0)
        since = max(since, end)
    return seconds


def by_process(infos: Iterable[LockInfo]) -> list[SimpleNamespace]:
    """Return the processes that hold the most locks, each with its locks. A task that was only
    sent runs in none."""
    held_in: dict[str, dict[str, Holding]] = defaultdict(dict)
    for info in infos:
        for holding in current_holds(info):
            if process := process_of(holding):
                held_in[process].setdefault(info.name, holding)
    processes = [
        SimpleNamespace(
            process=process,
            count=len(held),
            stale=sum(holding.is_stale for holding in held.values()),
            oldest=max(map(age, held.values())),
            names=sorted(held)[:MAX_NAMES],
            more=max(len(held) - MAX_NAMES, 0),
        )
        for process, held in held_in.items()
    ]
    return nlargest(MAX_PROCESSES, processes, key=attrgetter("stale", "count"))


# Presenting


def context(
    request: HttpRequest, site: AdminSite, manager: LockManager, visible: LockQuerySet
) -> dict[str, Any]:
    """Return what the template of the page shows, of the locks that the user may see."""
    aliases = aliases_of(request)
    for each in aliases:
        if each.error and each.name == manager.alias:
            raise each.error
    windows = {str(each): each for each in WINDOWS_MINUTES}
    minutes = windows.get(request.GET.get("minutes", ""), WINDOWS_MINUTES[1])
    snapshot = read(manager, visible, minutes)
    ranking = rank(snapshot)
    infos = snapshot.infos.values()
    problems = ranking.problems[:MAX_PROBLEMS]
    return {
        "minutes": minutes,
        "windows": WINDOWS_MINUTES,
        "now": snapshot.now,
        "aliases": shown_aliases(request, visible),
        "alias": manager.alias,
        "using": "" if manager.alias == locks.alias else manager.alias,
        "total": snapshot.total,
        "waiting": sum(info.waiters for info in infos),
        "stale_locks": sum(state_of(info) is STALE for info in infos),
        # Others can have waiters, be stale or be visible.
        "or_more": "" if snapshot.is_complete else "+",
        "deadlock": deadlock_text(len(snapshot.deadlock)),
        "deadlock_waits": snapshot.deadlock,
        "troubles": problems,
        "more_troubles": len(ranking.problems) - len(problems),
        "links": result_links(site, request, {each.holder.task_id for each in problems}),
        "chart": chart(ranking.busiest, snapshot),
        "busiest": ranking.busiest,
        "less_busy": ranking.activities - len(ranking.busiest),
        "processes": ranking.processes,
        "contended": ranking.contended,
        "top_wait": max((lock.longest_wait for lock in ranking.contended), default=0),
        # The counts are of all locks, so a user who may not see all locks does not see them.
        "rates": None if visible.tests else rate_chart(snapshot.rates),
        "recent": snapshot.recent,
        "is_narrowed": bool(visible.tests),
        "kept": conf.history,
    }


def chart(active: Sequence[Activity], snapshot: Snapshot) -> SimpleNamespace | None:
    """Return the timeline of some locks."""
    now, since = snapshot.now, snapshot.since
    rows = []
    for lock in active:
        row = Row(printable(lock.name), lock=lock.name)
        for event in lock.events:
            row.add_event(event)
        for holding in lock.holders:
            row.add_holding(holding, now)
        if lock.waiting_for:
            row.add_waiter(now - timedelta(seconds=lock.waiting_for), now)
        rows.append(row)
    if not rows:
        return None
    complete = snapshot.recent.complete_since
    if complete and complete > since:  # what is missing is drawn, too
        scale = Scale(since, now)
        return draw(rows, scale, unknown=scale.x(complete))
    # The axis begins at the first event, but is never shorter than a minute.
    starts = [span.start for row in rows for span in row.spans]
    first = min([*starts, now - MIN_AXIS])
    return draw(rows, Scale(max(first, since), now))


def rate_chart(rates: Rates) -> SimpleNamespace:
    """Return the rates, each drawn on a scale of its own, without events that did not happen."""
    counts = {what: found for what, found in rates.counts.items() if any(found)}
    series = [
        SimpleNamespace(
            what=what,
            word=outcome(what).word,
            total=sum(found),
            most=max(found),
            path=path_of_columns(found),
            y=HEAD_PIXELS + RATE_PIXELS * place,
            went_wrong=what in PROBLEMS,
        )
        for place, (what, found) in enumerate(counts.items())
    ]
    minutes = [
        SimpleNamespace(
            x=round(place * 100 / len(rates.minutes), 3),
            time=timezone.localtime(start).strftime("%H:%M"),
            counts=[(outcome(what).word, found[place]) for what, found in counts.items()],
        )
        for place, start in enumerate(rates.minutes)
        if any(found[place] for found in counts.values())
    ]
    return SimpleNamespace(
        series=series,
        times=times(Scale(rates.minutes[0], rates.minutes[-1] + timedelta(minutes=1))),
        minutes=minutes,
        height=HEAD_PIXELS + RATE_PIXELS * len(series),
    )


def path_of_columns(counts: Sequence[int]) -> str:
    """Return the counts as columns: path data in a box that is 1 wide for each, and 100 high."""
    top = max(counts)
    # A count of one in a thousand must be visible, too.
    tall = [max(round(100 * count / top, 1), 4.0) if count else 0 for count in counts]
    return "".join(f"M{x} 100v{-each:g}h.8V100z" for x, each in enumerate(tall) if each)
