"""The dashboard: recent holders and waiters, and how often each event happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from statistics import median

from django.utils import timezone
from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from ..backends import servers
from ..conf import conf
from ..engine import history
from ..engine.history import Recent
from ..engine.runners import run
from ..lock_state import STALE, state_of_holding
from ..manager import LockManager
from ..snapshots import Event, Holding, LockInfo, Rates
from ..text import printable, read_at, short_duration
from . import timeline
from .charts import Scale, columns, share
from .outcomes import OUTCOMES, outcome
from .rows import Cells, Link, event_row
from .timeline import BELOW, Row, Timeline, clock, listed, who

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

Address = Callable[[str], str]
"""Returns the address of the page of a lock."""


@dataclass(slots=True)
class LockActivity:
    """The recent events of one lock, and its present state."""

    name: str
    events: list[Event] = field(default_factory=list)
    info: LockInfo | None = None

    @property
    def holders(self) -> tuple[Holding, ...]:
        holders = self.info.holders if self.info else ()
        return tuple(holding for holding in holders if holding.timeout)

    @property
    def waiters(self) -> int:
        return self.info.waiters if self.info else 0

    @property
    def counts(self) -> Counter[str]:
        return Counter(event.outcome for event in self.events)

    @property
    def waits(self) -> list[float]:
        """The seconds that each holder waited in the queue, without holders that did not wait."""
        waited = [event.waited for event in self.events] + [h.waited for h in self.holders]
        return [seconds for seconds in waited if seconds > 0]


@dataclass(frozen=True, slots=True)
class Activity:
    """The data of the page."""

    minutes: int
    now: datetime
    total: int
    infos: tuple[LockInfo, ...]
    recent: Recent
    rates: Rates
    locks: dict[str, LockActivity]

    shows: Callable[[str], bool] | None = None
    """Whether the user may see the lock of that name; None if the user may see all."""

    @property
    def events(self) -> tuple[Event, ...]:
        return self.recent.events

    @property
    def since(self) -> datetime:
        """The start of the period that the user has chosen."""
        return self.now - timedelta(minutes=self.minutes)


def read_activity(manager: LockManager, minutes: int) -> Activity:
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
    locks: dict[str, LockActivity] = {}
    for event in recent.events:
        if event.at >= since:
            locks.setdefault(event.name, LockActivity(event.name)).events.append(event)
    for info in page.infos:
        locks.setdefault(info.name, LockActivity(info.name)).info = info
    if page.total > len(page.infos):  # read at least the locks that the page names
        named = [*_busiest(locks.values(), now, since), *_contended(locks.values())]
        missing = {lock.name for lock in named if lock.info is None}
        for name, found in manager.get_many(missing).items():
            locks[name].info = found
    return Activity(minutes, now, page.total, page.infos, recent, rates, locks)


def restricted(activity: Activity, may_view: Callable[[str], bool]) -> Activity:
    """Return the part that a user may see who may not see all locks.

    All events are kept, because the start of the complete history depends on all of them.
    """
    names = {*activity.locks, *(info.name for info in activity.infos)}
    shows = {name: may_view(name) for name in names}
    infos = tuple(info for info in activity.infos if shows[info.name])
    return replace(
        activity,
        total=activity.total - (len(activity.infos) - len(infos)),
        infos=infos,
        locks={name: lock for name, lock in activity.locks.items() if shows[name]},
        shows=cache(may_view),
    )


def minutes_of(text: str | None) -> int:
    """Return the window that was asked for, or the middle one."""
    return next((each for each in WINDOWS if str(each) == text), WINDOWS[1])


def stale_rows(activity: Activity, address: Address) -> list[Cells]:
    """Return the stale holders, first those that have not renewed for the longest time."""
    found = [
        (holding.since_renewal, info, holding)
        for info in activity.infos
        for holding in info.holders
        if state_of_holding(holding) is STALE
    ]
    found.sort(key=lambda each: each[0], reverse=True)
    return [
        Cells(
            name=printable(info.name),
            href=address(info.name),
            who=who(holding.holder),
            renewed=_("%(time)s ago") % {"time": short_duration(silent)},
            left=short_duration(holding.ttl),
            waiters=info.waiters,
        )
        for silent, info, holding in found
    ]


# Problems


def troubles(activity: Activity) -> list[Event]:
    """Return the problems of the last hour, the latest first."""
    since, shows = activity.rates.minutes[0], activity.shows
    return [
        each
        for each in activity.events
        if each.outcome in PROBLEMS and each.at >= since and (not shows or shows(each.name))
    ]


def trouble_rows(
    events: Iterable[Event], now: datetime, address: Address, link: Link
) -> list[Cells]:
    return [
        event_row(event, now, link, name=printable(event.name), href=address(event.name))
        for event in events
    ]


# The timeline


def chart(activity: Activity, address: Address) -> tuple[Timeline | None, list[Cells]]:
    """Return the timeline of the busiest locks, and the same as figures."""
    locks = _busiest(activity.locks.values(), activity.now, activity.since)
    if not locks:
        return None, []
    rows = [_row(lock, activity, address) for lock in locks]
    reach = activity.recent.complete_since
    starts = [span.start for row in rows for span in (*row.held, *row.waited)]
    if reach and reach > activity.since:  # what is missing is drawn, too
        starts = []
    # The axis begins at the first event, but is never shorter than a minute.
    first = min(min(starts, default=activity.since), activity.now - SHORTEST_AXIS)
    scale = Scale(max(first, activity.since), activity.now)
    drawn = timeline.draw(rows, scale, waits=BELOW)
    if reach and reach > activity.since:
        drawn.unknown = scale.x(reach)
    return drawn, [_name_row(lock, activity, address) for lock in locks]


def _busiest(locks: Iterable[LockActivity], now: datetime, since: datetime) -> list[LockActivity]:
    ranked = sorted(locks, key=lambda lock: _busy(lock, now, since), reverse=True)
    return ranked[:NAMES]


def _busy(lock: LockActivity, now: datetime, since: datetime) -> tuple[float, int]:
    seconds = _held_seconds(lock, now, since) + sum(lock.waits)
    return seconds, len(lock.events) + len(lock.holders)


def _held_seconds(lock: LockActivity, now: datetime, since: datetime) -> float:
    over = (_within(event.acquired_at, event.at, since) for event in lock.events)
    running = (_within(holding.acquired_at, now, since) for holding in lock.holders)
    return sum(over) + sum(running)


def _within(start: datetime | None, end: datetime, since: datetime) -> float:
    if start is None:
        return 0.0
    return max((end - max(start, since)).total_seconds(), 0.0)


def _row(lock: LockActivity, activity: Activity, address: Address) -> Row:
    waits = [timeline.wait_of_event(event) for event in lock.events]
    waits += [timeline.wait_of_holding(holding) for holding in lock.holders]
    held = [timeline.span_of_event(event) for event in lock.events if _was_held(event)]
    held += [timeline.span_of_holding(holding, activity.now) for holding in lock.holders]
    name, waited = printable(lock.name), [wait for wait in waits if wait]
    return Row(name, name, held, waited, href=address(lock.name))


def _was_held(event: Event) -> bool:
    return event.acquired_at is not None or event.outcome == "lost"


def _name_row(lock: LockActivity, activity: Activity, address: Address) -> Cells:
    held = _held_seconds(lock, activity.now, activity.since)
    part = share(held, activity.minutes * 60)
    counts = lock.counts
    counts["stale"] = sum(state_of_holding(holding) is STALE for holding in lock.holders)
    counts["held"] = len(lock.holders) - counts["stale"]
    return Cells(
        name=printable(lock.name),
        href=address(lock.name),
        holds=sum(map(_was_held, lock.events)) + len(lock.holders),
        held=short_duration(held),
        part=_("%(percent)s %%") % {"percent": number_format(part, 1)},
        waited=short_duration(sum(lock.waits)) if lock.waits else "",
        outcomes=[(each, counts[each.what]) for each in OUTCOMES.values() if counts[each.what]],
    )


# Contention


def contention(activity: Activity, address: Address) -> list[Cells]:
    """Return the locks that were waited for or refused: first those that most wait for now, whose
    waits are not over yet, then the longest wait."""
    locks = _contended(activity.locks.values())
    top = max((max(lock.waits, default=0.0) for lock in locks), default=0.0)
    return [_contention_row(lock, top, address) for lock in locks]


def _contended(locks: Iterable[LockActivity]) -> list[LockActivity]:
    wanted = [lock for lock in locks if any(_contention(lock))]
    return sorted(wanted, key=_contention, reverse=True)[:CONTENDED]


def _contention(lock: LockActivity) -> tuple[int, float, int]:
    counts = lock.counts
    return lock.waiters, max(lock.waits, default=0.0), counts["refused"] + counts["skipped"]


def _contention_row(lock: LockActivity, top: float, address: Address) -> Cells:
    waits, counts = lock.waits, lock.counts
    return Cells(
        name=printable(lock.name),
        href=address(lock.name),
        longest=short_duration(max(waits)) if waits else "",
        median=short_duration(median(waits)) if waits else "",
        total=short_duration(sum(waits)) if waits else "",
        waits=len(waits),
        waiters=lock.waiters,
        refused=counts["refused"],
        skipped=counts["skipped"],
        # The longest wait as a percentage of the longest wait of all locks.
        bar=share(max(waits, default=0.0), top),
    )


# Rates


BAND = 64
"""The height of one series with its heading, in pixels."""

RATE_HEAD = 24


def rate_chart(rates: Rates) -> Cells:
    """Return the rates, each drawn on a scale of its own, without events that did not happen."""
    words = rate_words()
    there = [what for what in words if sum(rates.counts.get(what, ()))]
    series = [
        Cells(
            what=what,
            word=words[what],
            total=sum(rates.counts[what]),
            most=max(rates.counts[what]),
            path=columns(rates.counts[what]),
            y=RATE_HEAD + BAND * place,
            went_wrong=what in PROBLEMS,
        )
        for place, what in enumerate(there)
    ]
    figures = [
        (
            timezone.localtime(minute).strftime("%H:%M"),
            [rates.counts[what][place] for what in there],
        )
        for place, minute in enumerate(rates.minutes)
    ]
    return Cells(
        series=series,
        absent=listed(words[what] for what in words if what not in there),
        times=timeline.times(Scale(rates.minutes[0], rates.minutes[-1] + timedelta(minutes=1))),
        # The position of each minute with events in percent, and its figures.
        columns=[
            (round(place * 100 / len(figures), 3), _figures_text(minute, counts, there))
            for place, (minute, counts) in enumerate(figures)
            if any(counts)
        ],
        height=RATE_HEAD + BAND * len(series),
        rows=[each for each in reversed(figures) if any(each[1])],
        # A loss may also be counted as an expired or force-released hold.
        counts_losses_twice="lost" in there and not {"expired", "forced"}.isdisjoint(there),
    )


def rate_words() -> dict[str, str]:
    return {"acquired": pgettext("of a lock", "acquired")} | {
        what: str(outcome(what).word) for what in ("refused", *PROBLEMS)
    }


def _figures_text(minute: str, counts: Sequence[int], there: Sequence[str]) -> str:
    words = rate_words()
    parts = [
        _("%(what)s %(count)d") % {"what": words[what], "count": count}
        for what, count in zip(there, counts, strict=True)
        if count
    ]
    return _("%(time)s: %(counts)s") % {"time": minute, "counts": listed(parts)}


# How far back


def reach_text(activity: Activity) -> str:
    """Return a sentence with the start of the history, or an empty string without a history."""
    if not conf.history:
        return ""
    if activity.recent.oldest is None:
        return _("No events are kept yet.")
    reach = activity.recent.complete_since
    since = clock(reach or activity.recent.oldest, activity.now)
    if reach is None:
        return _("The history is complete. It begins at %(time)s.") % {"time": since}
    text = _(
        "The history is complete since %(time)s. Older events may be missing "
        "(REDISLOCK_HISTORY = %(kept)s)."
    )
    return text % {"time": since, "kept": conf.history}
