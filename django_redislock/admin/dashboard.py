"""The dashboard: recent holders and waiters, and how often each event happened."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from heapq import nlargest
from operator import attrgetter
from statistics import median
from threading import Timer
from types import SimpleNamespace
from typing import Any

from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.utils import timezone

from .. import clock
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
MAX_EVENTS = 12_000  # of each stream. By default, no stream has more
MAX_PROBLEMS = 10  # that are listed: the latest
PROBLEMS = ("expired", "forced", "lost", "killed")  # outcomes
RATE_PIXELS = 64  # the height of one series with its heading

MIN_KEPT_EVENTS = 2000
"""From this number on, events are kept for the next request. To read and parse a full history of
30,000 events takes a second of CPU."""

KEPT_SECONDS = 2.0
MAX_KEPT = 4
"""How long such events are kept, and of how many pages."""

_kept: dict[tuple[object, ...], tuple[float, Recent]] = {}


def context(
    request: HttpRequest, site: AdminSite, manager: LockManager, visible: LockQuerySet
) -> dict[str, Any]:
    """Return what the template of the page shows, of the locks that the user may see."""
    windows = {str(each): each for each in WINDOWS_MINUTES}
    minutes = windows.get(request.GET.get("minutes", ""), WINDOWS_MINUTES[1])
    aliases = aliases_of(request)
    for each in aliases:
        if each.error and each.name == manager.alias:
            raise each.error
    page = manager.page(stop=MAX_READ)
    recent = _recent(manager, minutes)
    rates = manager.rates()
    read_times = [read_at(info.first) for info in page.infos if info.first]
    # By the clock of the server. Without a lock, only its minute is known, from the rates.
    minute = rates.minutes[-1]
    local_now = min(max(datetime.now(UTC), minute), minute + timedelta(minutes=1))
    now = read_times[0] if read_times else local_now
    since = now - timedelta(minutes=minutes)
    held = {info.name: info for info in page.infos}

    @cache
    def shows(name: str) -> bool:
        info = held.get(name)
        return not visible.tests or visible.matches(ActiveLock.of(name, manager.alias, info))

    infos = {name: info for name, info in held.items() if shows(name)}
    events = [event for event in recent.events if shows(event.name)]
    # If only some of the locks were read, more can have waiters, be stale or be visible.
    or_more = "+" if page.total > len(held) else ""
    events_of: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.at >= since:
            events_of[event.name].append(event)
    names = dict.fromkeys([*infos, *events_of])
    activities = [figures(name, events_of[name], infos.get(name), since, now) for name in names]
    drawn = nlargest(MAX_DRAWN, activities, key=attrgetter("busy"))
    contended = (lock for lock in activities if any(lock.contention))
    waited_for = nlargest(MAX_CONTENDED, contended, key=attrgetter("contention"))
    if or_more:  # read at least the locks that the page names
        missing = manager.get_many({lock.name for lock in (*drawn, *waited_for)} - infos.keys())
        fresh = {
            name: figures(name, events_of[name], info, since, now)
            for name, info in missing.items()
        }
        drawn = [fresh.get(lock.name, lock) for lock in drawn]
        waited_for = [fresh.get(lock.name, lock) for lock in waited_for]
    start = rates.minutes[0]
    problems = [event for event in events if event.outcome in PROBLEMS and event.at >= start]
    listed_problems = problems[:MAX_PROBLEMS]
    return {
        "minutes": minutes,
        "windows": WINDOWS_MINUTES,
        "now": now,
        "aliases": shown_aliases(request, visible),
        "alias": manager.alias,
        "using": "" if manager.alias == locks.alias else manager.alias,
        "total": len(infos) if visible.tests else page.total,
        "waiting": sum(info.waiters for info in infos.values()),
        "stale_locks": sum(state_of(info) is STALE for info in infos.values()),
        "or_more": or_more,
        "troubles": listed_problems,
        "more_troubles": len(problems) - len(listed_problems),
        "links": result_links(site, request, {each.holder.task_id for each in listed_problems}),
        "chart": chart(drawn, since, now, recent.complete_since) if drawn else None,
        "busiest": drawn,
        "less_busy": len(activities) - len(drawn),
        "processes": by_process(infos.values()),
        "contended": waited_for,
        "top_wait": max((lock.longest_wait for lock in waited_for), default=0),
        # The counts are of all locks, so a user who may not see all locks does not see them.
        "rates": None if visible.tests else rate_chart(rates),
        "recent": recent,
        "is_narrowed": bool(visible.tests),
        "kept": conf.history,
    }


def _recent(manager: LockManager, minutes: int) -> Recent:
    """Return the events of all locks: of these minutes, and problems of an hour."""
    if not conf.history:
        return Recent((), None, None)
    server = servers[manager.alias]
    key = (*server.identity, minutes, conf.history)
    kept_at, recent = _kept.get(key, (0.0, None))
    if recent and clock.now() < kept_at + KEPT_SECONDS:
        return recent
    window, hour = (timedelta(minutes=each + 1) for each in (minutes, history.RATE_MINUTES))
    recent = run(server.client, history.recent(server.keys, window, hour, MAX_EVENTS))
    if len(recent.events) >= MIN_KEPT_EVENTS:
        if len(_kept) >= MAX_KEPT:
            _kept.clear()
        _kept[key] = clock.now(), recent
        forget = Timer(KEPT_SECONDS, _kept.pop, (key, None))  # they take tens of megabytes
        forget.daemon = True
        forget.start()
    return recent


def figures(
    name: str, events: list[Event], info: LockInfo | None, since: datetime, now: datetime
) -> SimpleNamespace:
    """Return the figures of one lock: of its recent events, and of its present holders."""
    holders = current_holds(info)
    running = [holding for holding in holders if not is_queued(holding)]
    counts = Counter(event.outcome for event in events)
    counts.update(map(outcome_of, holders))
    spans = [(event.acquired_at or event.at, min(event.at, now)) for event in events]
    spans += [(holding.acquired_at, now) for holding in running]
    held, covered = 0.0, since
    for start, end in sorted(spans):  # a time with several holders counts once
        held += max((end - max(start, covered)).total_seconds(), 0)
        covered = max(covered, end)
    # Holders that did not wait do not count. Of the present waiters, the first has waited longest.
    waiters, waiting_for = (info.waiters, info.longest_wait) if info else (0, 0.0)
    ended = map(attrgetter("waited"), (*events, *holders))
    waits = [seconds for seconds in (*ended, waiting_for) if seconds > 0]
    longest = max(waits, default=0.0)
    return SimpleNamespace(
        name=name,
        events=events,
        holders=holders,
        waiters=waiters,
        waiting_for=waiting_for,
        holds=sum(map(was_held, events)) + len(running),
        counts=counts,
        outcomes=[(each, counts[each.what]) for each in legend(counts)],
        held_seconds=held,
        held_percent=100 * held / (now - since).total_seconds(),
        waits=waits,
        longest_wait=longest,
        median_wait=median(waits or [0.0]),
        total_wait=sum(waits),
        busy=held + sum(waits),
        # First the waits that are not over yet.
        contention=(waiting_for, longest, counts["refused"] + counts["skipped"]),
    )


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


def chart(
    active: Sequence[SimpleNamespace], since: datetime, now: datetime, complete: datetime | None
) -> SimpleNamespace:
    """Return the timeline of some locks. The history is complete since `complete`, or always."""
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
