"""The dashboard: recent holders and waiters, and how often each event happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from operator import attrgetter
from statistics import median
from types import SimpleNamespace
from typing import Any

from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import pgettext

from ..backends import servers
from ..conf import conf
from ..engine import history
from ..engine.history import Recent
from ..engine.runners import run
from ..lock_state import STALE, state_of, state_of_holding
from ..manager import LockManager, locks
from ..models import ActiveLock
from ..snapshots import Event, Holding, LockInfo, Rates
from ..text import printable, read_at
from .outcomes import Outcome, legend, outcome
from .queryset import LockQuerySet
from .tasks import result_links
from .timeline import Row, Scale, draw, listed, times, was_held

WINDOWS = (5, 15, 60)
"""The periods that a user can choose, in minutes."""

SHORTEST_AXIS = timedelta(minutes=1)

NAMES = 30
"""The number of locks that are drawn: those that were held and waited for the longest."""

CONTENDED = 20
"""The number of locks that are listed with their waiters."""

LOCKS = 1000
"""The number of locks that are read: those whose leases end first."""

EVENTS = 1200
"""Events that are read of each stream of each bucket, the latest. With `REDISLOCK_HISTORY` at its
default no stream has more."""

TROUBLES = 10
"""The number of recent problems that are listed."""

PROBLEMS = ("expired", "forced", "lost")
"""The outcomes that are problems."""


@dataclass(slots=True)
class LockActivity:
    """The recent events of one lock, and its present holders."""

    name: str
    since: datetime
    now: datetime
    events: list[Event] = field(default_factory=list)
    info: LockInfo | None = None

    @property
    def waiters(self) -> int:
        return self.info.waiters if self.info else 0

    @property
    def holders(self) -> list[Holding]:
        return [each for each in self.info.holders if each.timeout] if self.info else []

    @property
    def holds(self) -> int:
        return sum(map(was_held, self.events)) + len(self.holders)

    @property
    def counts(self) -> Counter[str]:
        """The number of events and of present holders, by outcome."""
        counts = Counter(event.outcome for event in self.events)
        counts.update("stale" if is_stale(each) else "held" for each in self.holders)
        return counts

    @property
    def outcomes(self) -> list[tuple[Outcome, int]]:
        counts = self.counts
        return [(each, counts[each.what]) for each in legend(counts)]

    @property
    def held_seconds(self) -> float:
        """For how long it was held since the start of the period, by all holders together."""
        spans = [(event.acquired_at or event.at, event.at) for event in self.events]
        spans += [(holding.acquired_at, self.now) for holding in self.holders]
        return sum(max((end - max(start, self.since)).total_seconds(), 0) for start, end in spans)

    @property
    def held_percent(self) -> float:
        return 100 * self.held_seconds / (self.now - self.since).total_seconds()

    @property
    def waits(self) -> list[float]:
        """The seconds that each holder waited in the queue, without holders that did not wait."""
        waited = [event.waited for event in self.events] + [each.waited for each in self.holders]
        return [seconds for seconds in waited if seconds > 0]

    @property
    def longest_wait(self) -> float:
        return max(self.waits, default=0.0)

    @property
    def median_wait(self) -> float:
        return median(self.waits)

    @property
    def total_wait(self) -> float:
        return sum(self.waits)

    @property
    def busy(self) -> tuple[float, int]:
        """A sort key: for how long it was held and waited for."""
        return self.held_seconds + self.total_wait, len(self.events) + len(self.holders)

    @property
    def contention(self) -> tuple[int, float, int]:
        """A sort key: how many wait now, the longest wait, and how many did not acquire it."""
        counts = self.counts
        return self.waiters, self.longest_wait, counts["refused"] + counts["skipped"]


def is_stale(holding: Holding) -> bool:
    return state_of_holding(holding) is STALE


def context(
    request: HttpRequest, site: AdminSite, manager: LockManager, visible: LockQuerySet
) -> dict[str, Any]:
    """Return what the template of the page shows, of the locks that the user may see."""
    asked = request.GET.get("minutes")
    minutes = next((each for each in WINDOWS if str(each) == asked), WINDOWS[1])
    page = manager.page(stop=LOCKS)
    recent = _recent(manager, minutes)
    rates = manager.rates()
    read = (read_at(info.first) for info in page.infos if info.first)
    now = next(read, None) or max([datetime.now(UTC), *(each.at for each in recent.events[:1])])
    since = now - timedelta(minutes=minutes)
    held = {info.name: info for info in page.infos}

    infos, events = held, list(recent.events)
    if visible.tests:

        @cache
        def shows(name: str) -> bool:
            return visible.matches(ActiveLock.of(name, manager.alias, held.get(name)))

        infos = {name: info for name, info in held.items() if shows(name)}
        events = [event for event in events if shows(event.name)]
    total = page.total - len(held) + len(infos)
    active = {name: LockActivity(name, since, now, info=info) for name, info in infos.items()}
    for event in events:
        if event.at >= since:
            lock = active.setdefault(event.name, LockActivity(event.name, since, now))
            lock.events.append(event)
    drawn = sorted(active.values(), key=attrgetter("busy"), reverse=True)[:NAMES]
    # First those that most wait for now, whose waits are not over yet, then the longest wait.
    waited_for = [lock for lock in active.values() if any(lock.contention)]
    waited_for = sorted(waited_for, key=attrgetter("contention"), reverse=True)[:CONTENDED]
    if total > len(infos):  # read at least the locks that the page names
        named = {lock.name for lock in (*drawn, *waited_for)}
        for name, info in manager.get_many(named - infos.keys()).items():
            active[name].info = info
    first_minute = rates.minutes[0]
    troubles = [each for each in events if each.outcome in PROBLEMS and each.at >= first_minute]
    listed_troubles = troubles[:TROUBLES]
    return {
        "minutes": minutes,
        "windows": WINDOWS,
        "now": now,
        "aliases": [each.alias for each in locks.everywhere()],
        "alias": manager.alias,
        "using": "" if manager.alias == locks.alias else manager.alias,
        "total": total,
        "read_count": len(infos),
        "waiting": sum(info.waiters for info in infos.values()),
        "stale_locks": sum(state_of(info) is STALE for info in infos.values()),
        # Only some of the locks were read, so more can have waiters or be stale.
        "or_more": "+" if total > len(infos) else "",
        "troubles": listed_troubles,
        "more_troubles": len(troubles) - len(listed_troubles),
        "links": result_links(site, request, {each.holder.task_id for each in listed_troubles}),
        "chart": chart(drawn, since, now, recent.complete_since) if drawn else None,
        "busiest": drawn,
        "less_busy": len(active) - len(drawn),
        "contended": waited_for,
        "top_wait": max((lock.longest_wait for lock in waited_for), default=0),
        # The counts are of all locks, so a user who may not see all locks does not see them.
        "rates": None if visible.tests else rate_chart(rates),
        "recent": recent,
        "kept": conf.history,
    }


def _recent(manager: LockManager, minutes: int) -> Recent:
    """Return the events of all locks: of these minutes, and problems of an hour."""
    if not conf.history:
        return Recent((), None, None)
    server = servers[manager.alias]
    age, hour = (timedelta(minutes=each + 1) for each in (minutes, history.RATE_MINUTES))
    return run(server.client, history.recent(server.keys, age, hour, EVENTS))


def chart(
    active: Sequence[LockActivity], since: datetime, now: datetime, complete: datetime | None
) -> SimpleNamespace:
    """Return the timeline of some locks. The history is complete since `complete`, or always."""
    rows = []
    for lock in active:
        row = Row(printable(lock.name), printable(lock.name), lock=lock.name)
        for event in lock.events:
            row.add_event(event)
        for holding in lock.holders:
            row.add_holding(holding, now)
        rows.append(row)
    if complete and complete > since:  # what is missing is drawn, too
        scale = Scale(since, now)
        return draw(rows, scale, unknown=scale.x(complete))
    # The axis begins at the first event, but is never shorter than a minute.
    starts = [span.start for row in rows for span in (*row.held, *row.waited)]
    first = min([*starts, now - SHORTEST_AXIS])
    return draw(rows, Scale(max(first, since), now))


# Rates


BAND = 64
"""The height of one series with its heading, in pixels."""

RATE_HEAD = 24


def rate_chart(rates: Rates) -> SimpleNamespace:
    """Return the rates, each drawn on a scale of its own, without events that did not happen."""
    words = {"acquired": pgettext("of a lock", "acquired")}
    words |= {what: str(outcome(what).word) for what in ("refused", *PROBLEMS)}
    counts = {what: rates.counts[what] for what in words if any(rates.counts.get(what, ()))}
    series = [
        SimpleNamespace(
            what=what,
            word=words[what],
            total=sum(found),
            most=max(found),
            path=columns(found),
            y=RATE_HEAD + BAND * place,
            went_wrong=what in PROBLEMS,
        )
        for place, (what, found) in enumerate(counts.items())
    ]
    minutes = [
        SimpleNamespace(
            x=round(place * 100 / len(rates.minutes), 3),
            time=timezone.localtime(start).strftime("%H:%M"),
            counts=[(words[what], found[place]) for what, found in counts.items()],
        )
        for place, start in enumerate(rates.minutes)
        if any(found[place] for found in counts.values())
    ]
    return SimpleNamespace(
        series=series,
        absent=listed(words[what] for what in words if what not in counts),
        times=times(Scale(rates.minutes[0], rates.minutes[-1] + timedelta(minutes=1))),
        minutes=minutes,
        height=RATE_HEAD + BAND * len(series),
    )


def columns(counts: Sequence[int]) -> str:
    """Return the counts as columns: path data in a box that is 1 wide for each, and 100 high."""
    top = max(counts)
    # A count of one in a thousand must be visible, too.
    tall = [max(round(100 * count / top, 1), 4.0) if count else 0 for count in counts]
    return "".join(f"M{x} 100v{-each:g}h.8V100z" for x, each in enumerate(tall) if each)
