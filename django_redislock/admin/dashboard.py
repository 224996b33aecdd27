"""The dashboard: recent holders and waiters, and how often each event happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from operator import attrgetter
from statistics import median
from types import SimpleNamespace
from typing import Any

from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext as _
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
from . import timeline
from .charts import Scale, columns
from .outcomes import Outcome, legend, outcome
from .queryset import LockQuerySet
from .tasks import result_links
from .timeline import BELOW, Row, listed, was_held

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

MAX_STALE_ROWS = 50
"""Stale locks that are listed."""

TROUBLES = 10
"""The number of recent problems that are listed."""

PROBLEMS = ("expired", "forced", "lost")
"""The outcomes that are problems."""


@dataclass
class LockActivity:
    """The recent events of one lock, and its present state."""

    name: str
    since: datetime
    now: datetime
    events: list[Event] = field(default_factory=list)
    info: LockInfo | None = None

    @property
    def waiters(self) -> int:
        return self.info.waiters if self.info else 0

    @cached_property
    def holders(self) -> list[Holding]:
        holders = self.info.holders if self.info else ()
        return [holding for holding in holders if holding.timeout]

    @cached_property
    def past(self) -> list[Event]:
        """The events that ended a hold."""
        return [event for event in self.events if was_held(event)]

    @property
    def holds(self) -> int:
        return len(self.past) + len(self.holders)

    @cached_property
    def counts(self) -> Counter[str]:
        """The number of events and of present holders, by outcome."""
        counts = Counter(event.outcome for event in self.events)
        counts["stale"] = sum(state_of_holding(holding) is STALE for holding in self.holders)
        counts["held"] = len(self.holders) - counts["stale"]
        return counts

    @property
    def outcomes(self) -> list[tuple[Outcome, int]]:
        return [(each, self.counts[each.what]) for each in legend(+self.counts)]

    @cached_property
    def held_seconds(self) -> float:
        """For how long it was held since the start of the period, by all holders together."""
        spans = [(event.acquired_at or event.at, event.at) for event in self.events]
        spans += [(holding.acquired_at, self.now) for holding in self.holders]
        return sum(max((end - max(start, self.since)).total_seconds(), 0) for start, end in spans)

    @property
    def held_percent(self) -> float:
        return 100 * self.held_seconds / (self.now - self.since).total_seconds()

    @cached_property
    def waits(self) -> list[float]:
        """The seconds that each holder waited in the queue, without holders that did not wait."""
        waited = [event.waited for event in self.events] + [h.waited for h in self.holders]
        return [seconds for seconds in waited if seconds > 0]

    @property
    def longest_wait(self) -> float:
        return max(self.waits, default=0.0)

    @property
    def median_wait(self) -> float:
        return median(self.waits or [0.0])

    @property
    def total_wait(self) -> float:
        return sum(self.waits)

    @property
    def contention(self) -> tuple[int, float, int]:
        """A sort key: how many wait now, the longest wait, and how many did not acquire it."""
        return self.waiters, self.longest_wait, self.counts["refused"] + self.counts["skipped"]


@dataclass(frozen=True, slots=True)
class Activity:
    """The data of the page: of all locks, or of those that the user may see."""

    minutes: int

    since: datetime
    """The start of the period that the user has chosen."""

    now: datetime
    total: int
    infos: Sequence[LockInfo]
    locks: dict[str, LockActivity]

    recent: Recent
    """The events of all locks. The start of the complete history depends on all of them."""

    rates: Rates
    shows: Callable[[str], bool]
    """Whether the user may see the lock of that name."""


def read_activity(
    manager: LockManager, minutes: int, visible: LockQuerySet | None = None
) -> Activity:
    """Read the data of the page. The events go back to the start of the period, and problems for
    an hour."""
    page = manager.page(stop=LOCKS)
    recent = Recent((), None, None)
    if conf.history:
        there = servers[manager.alias]
        age, hour = (timedelta(minutes=each + 1) for each in (minutes, history.RATE_MINUTES))
        recent = run(there.client, history.recent(there.keys, age, hour, EVENTS))
    rates = manager.rates()
    read = (read_at(info.first) for info in page.infos if info.first)
    latest = [event.at for event in recent.events[:1]]
    now = next(read, None) or max([datetime.now(UTC), *latest])
    since = now - timedelta(minutes=minutes)
    held = {info.name: info for info in page.infos}

    @cache
    def shows(name: str) -> bool:
        return not visible or visible.matches(ActiveLock.of(name, manager.alias, held.get(name)))

    infos = [info for info in page.infos if shows(info.name)]
    locks = {info.name: LockActivity(info.name, since, now, info=info) for info in infos}
    for event in recent.events:
        if event.at >= since and shows(event.name):
            lock = locks.setdefault(event.name, LockActivity(event.name, since, now))
            lock.events.append(event)
    total = page.total - len(page.infos) + len(infos)
    if total > len(infos):  # read at least the locks that the page names
        named = [*busiest(locks.values()), *contended(locks.values())]
        missing = {lock.name for lock in named if lock.info is None}
        for name, found in manager.get_many(missing).items():
            locks[name] = replace(locks[name], info=found)
    return Activity(minutes, since, now, total, infos, locks, recent, rates, shows)


def context(
    request: HttpRequest, site: AdminSite, manager: LockManager, visible: LockQuerySet
) -> dict[str, Any]:
    """Return what the template of the page shows."""
    minutes = minutes_of(request.GET.get("minutes"))
    activity = read_activity(manager, minutes, visible if visible.tests else None)
    locks_by_use = busiest(activity.locks.values())
    stale = stale_holders(activity)
    waited_for = contended(activity.locks.values())
    problems = troubles(activity)
    listed_problems = problems[:TROUBLES]
    return {
        "minutes": minutes,
        "windows": WINDOWS,
        "now": activity.now,
        "aliases": [each.alias for each in locks.everywhere()],
        "alias": manager.alias,
        "using": "" if manager.alias == locks.alias else manager.alias,
        "total": activity.total,
        "read_count": len(activity.infos),
        "waiting": sum(info.waiters for info in activity.infos),
        "stale_locks": sum(state_of(info) is STALE for info in activity.infos),
        # Only some of the locks were read, so more can have waiters or be stale.
        "or_more": "+" if activity.total > len(activity.infos) else "",
        "stale": stale[:MAX_STALE_ROWS],
        "stale_count": len(stale),
        "troubles": listed_problems,
        "more_troubles": len(problems) - len(listed_problems),
        "links": result_links(site, request, {each.holder.task_id for each in listed_problems}),
        "chart": chart(activity, locks_by_use),
        "busiest": locks_by_use,
        "less_busy": len(activity.locks) - len(locks_by_use),
        "contended": waited_for,
        "top_wait": max((lock.longest_wait for lock in waited_for), default=0),
        # The counts are of all locks, so a user who may not see all locks does not see them.
        "rates": None if visible.tests else rate_chart(activity.rates),
        "recent": activity.recent,
        "kept": conf.history,
    }


def minutes_of(text: str | None) -> int:
    """Return the window that was asked for, or the middle one."""
    return next((each for each in WINDOWS if str(each) == text), WINDOWS[1])


def stale_holders(activity: Activity) -> list[tuple[LockInfo, Holding]]:
    """Return the stale holders, first those that have not renewed for the longest time."""
    found = [
        (info, holding)
        for info in activity.infos
        for holding in info.holders
        if state_of_holding(holding) is STALE
    ]
    return sorted(found, key=lambda each: each[1].since_renewal, reverse=True)


def troubles(activity: Activity) -> list[Event]:
    """Return the problems of the last hour, the latest first."""
    since = activity.rates.minutes[0]
    return [
        each
        for each in activity.recent.events
        if each.outcome in PROBLEMS and each.at >= since and activity.shows(each.name)
    ]


def busiest(locks: Iterable[LockActivity]) -> list[LockActivity]:
    """Return the locks that were held and waited for the longest."""
    return sorted(locks, key=_busy, reverse=True)[:NAMES]


def _busy(lock: LockActivity) -> tuple[float, int]:
    return lock.held_seconds + lock.total_wait, len(lock.events) + len(lock.holders)


def contended(locks: Iterable[LockActivity]) -> list[LockActivity]:
    """Return the locks that were waited for or refused: first those that most wait for now, whose
    waits are not over yet, then the longest wait."""
    wanted = [lock for lock in locks if any(lock.contention)]
    return sorted(wanted, key=attrgetter("contention"), reverse=True)[:CONTENDED]


def chart(activity: Activity, locks: Sequence[LockActivity]) -> SimpleNamespace | None:
    """Return the timeline of some locks."""
    if not locks:
        return None
    rows = []
    for lock in locks:
        waits = [timeline.wait_of_event(event) for event in lock.events]
        waits += [timeline.wait_of_holding(holding) for holding in lock.holders]
        held = [timeline.span_of_event(event) for event in lock.past]
        held += [timeline.span_of_holding(holding, activity.now) for holding in lock.holders]
        label = printable(lock.name)
        rows.append(Row(label, label, held, [wait for wait in waits if wait], lock=lock.name))
    reach = activity.recent.complete_since
    starts = [span.start for row in rows for span in (*row.held, *row.waited)]
    if reach and reach > activity.since:  # what is missing is drawn, too
        starts = []
    # The axis begins at the first event, but is never shorter than a minute.
    first = min(min(starts, default=activity.since), activity.now - SHORTEST_AXIS)
    scale = Scale(max(first, activity.since), activity.now)
    unknown = scale.x(reach) if reach and reach > activity.since else 0.0
    return timeline.draw(rows, scale, waits=BELOW, unknown=unknown)


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
    minutes = []
    for place, start in enumerate(rates.minutes):
        numbers = [found[place] for found in counts.values()]
        parts = [
            _("%(what)s %(count)d") % {"what": words[what], "count": number}
            for what, number in zip(counts, numbers, strict=True)
            if number
        ]
        if parts:
            time = timezone.localtime(start).strftime("%H:%M")
            text = _("%(time)s: %(counts)s") % {"time": time, "counts": listed(parts)}
            x = round(place * 100 / len(rates.minutes), 3)
            minutes.append(SimpleNamespace(x=x, time=time, counts=numbers, text=text))
    return SimpleNamespace(
        series=series,
        absent=listed(words[what] for what in words if what not in counts),
        times=timeline.times(Scale(rates.minutes[0], rates.minutes[-1] + timedelta(minutes=1))),
        minutes=minutes,
        height=RATE_HEAD + BAND * len(series),
        # A loss may also be counted as an expired or force-released hold.
        counts_losses_twice="lost" in counts and not {"expired", "forced"}.isdisjoint(counts),
    )
