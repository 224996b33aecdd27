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
from ..lock_state import STALE, state_of, state_of_holding
from ..manager import LockManager
from ..snapshots import Event, Holding, LockInfo, Rates
from ..text import printable, read_at, short_duration
from . import timeline
from .charts import Scale, columns, share
from .outcomes import OUTCOMES, outcome
from .rows import Cells, Link, event_row
from .timeline import BELOW, Row, Timeline, clock, listed, who

WINDOWS = (5, 15, 60)
"""Minutes that can be looked at."""

SHORTEST_AXIS = timedelta(minutes=1)

NAMES = 30
"""Locks that are drawn: those that were held and waited for the longest."""

CONTENDED = 20
"""The number of locks that are listed with their waiters."""

LOCKS = 1000
"""Locks that are asked for, those whose leases end first."""

EVENTS = 1200
"""Events that are read of each stream of each bucket, the latest. With `REDISLOCK_HISTORY` at its
default no stream has more."""

MAX_STALE_ROWS = 50
"""Stale locks that are listed."""

TROUBLES = 10
"""Holdings that went wrong that are listed, the latest."""

WENT_WRONG = ("expired", "forced", "lost")
"""How a holding ends that did not end as it should."""

Address = Callable[[str], str]
"""From a lock's name to its page."""


@dataclass(slots=True)
class Story:
    """One lock's part in what happened."""

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
        """Seconds in the queue, of those who stood there."""
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
    stories: dict[str, Story]

    shows: Callable[[str], bool] | None = None
    """Whether the user may see the lock of that name; None if the user may see all."""

    @property
    def events(self) -> tuple[Event, ...]:
        return self.recent.events

    @property
    def since(self) -> datetime:
        """When the period began that the user has chosen."""
        return self.now - timedelta(minutes=self.minutes)


def read_activity(manager: LockManager, minutes: int) -> Activity:
    """Read what the page shows. The events go back to the start of the period, and those that
    went wrong for an hour."""
    page = manager.page(stop=LOCKS)
    recent = _recent(manager, minutes) if conf.history else Recent((), None, None)
    events = recent.events
    rates = manager.rates()
    now = _now(page.infos, events)
    since = now - timedelta(minutes=minutes)
    stories = _stories(page.infos, [event for event in events if event.at >= since])
    if page.total > len(page.infos):
        _complete(manager, stories, now, since)
    return Activity(minutes, now, page.total, page.infos, recent, rates, stories)


def _recent(manager: LockManager, minutes: int) -> Recent:
    there = servers[manager.alias]
    age, hour = (timedelta(minutes=each + 1) for each in (minutes, history.RATE_MINUTES))
    return run(there.client, history.recent(there.keys, age, hour, EVENTS))


def restricted(activity: Activity, may_view: Callable[[str], bool]) -> Activity:
    """Return the part that a user may see who may not see all locks.

    All events are kept, because the start of the complete history depends on all of them.
    """
    names = {*activity.stories, *(info.name for info in activity.infos)}
    shows = {name: may_view(name) for name in names}
    infos = tuple(info for info in activity.infos if shows[info.name])
    return replace(
        activity,
        total=activity.total - (len(activity.infos) - len(infos)),
        infos=infos,
        stories={name: story for name, story in activity.stories.items() if shows[name]},
        shows=cache(may_view),
    )


def minutes_of(text: str | None) -> int:
    """Return the window that was asked for, or the middle one."""
    return next((each for each in WINDOWS if str(each) == text), WINDOWS[1])


def _now(infos: Iterable[LockInfo], events: Sequence[Event]) -> datetime:
    read = (read_at(info.first) for info in infos if info.first)
    return next(read, None) or max([datetime.now(UTC), *(event.at for event in events[:1])])


def _stories(infos: Iterable[LockInfo], events: Iterable[Event]) -> dict[str, Story]:
    stories: dict[str, Story] = {}
    for event in events:
        stories.setdefault(event.name, Story(event.name)).events.append(event)
    for info in infos:
        stories.setdefault(info.name, Story(info.name)).info = info
    return stories


def _complete(
    manager: LockManager, stories: dict[str, Story], now: datetime, since: datetime
) -> None:
    """Read the locks that the page names. There are too many to read all."""
    parts = [*_busiest(stories.values(), now, since), *_contended(stories.values())]
    missing = {story.name for story in parts if story.info is None}
    for name, info in manager.get_many(missing).items():
        stories[name].info = info


# At one look


def waiting(activity: Activity) -> int:
    return sum(info.waiters for info in activity.infos)


def stale(activity: Activity) -> int:
    """Return how many locks have a holder whose renewal is overdue."""
    return sum(state_of(info) is STALE for info in activity.infos)


def stale_rows(activity: Activity, address: Address) -> list[Cells]:
    """Return the holders whose renewal is overdue, those that are silent the longest first."""
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


# What went wrong


def troubles(activity: Activity) -> list[Event]:
    """Return what went wrong in the minutes that are counted, the latest first."""
    since, shows = activity.rates.minutes[0], activity.shows
    return [
        each
        for each in activity.events
        if each.outcome in WENT_WRONG and each.at >= since and (not shows or shows(each.name))
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
    stories = _busiest(activity.stories.values(), activity.now, activity.since)
    if not stories:
        return None, []
    rows = [_row(story, activity, address) for story in stories]
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
    return drawn, [_name_row(story, activity, address) for story in stories]


def _busiest(stories: Iterable[Story], now: datetime, since: datetime) -> list[Story]:
    ranked = sorted(stories, key=lambda story: _busy(story, now, since), reverse=True)
    return ranked[:NAMES]


def _busy(story: Story, now: datetime, since: datetime) -> tuple[float, int]:
    seconds = _held_seconds(story, now, since) + sum(story.waits)
    return seconds, len(story.events) + len(story.holders)


def _held_seconds(story: Story, now: datetime, since: datetime) -> float:
    over = (_within(event.acquired_at, event.at, since) for event in story.events)
    running = (_within(holding.acquired_at, now, since) for holding in story.holders)
    return sum(over) + sum(running)


def _within(start: datetime | None, end: datetime, since: datetime) -> float:
    if start is None:
        return 0.0
    return max((end - max(start, since)).total_seconds(), 0.0)


def _row(story: Story, activity: Activity, address: Address) -> Row:
    waits = [timeline.wait_of_event(event) for event in story.events]
    waits += [timeline.wait_of_holding(holding) for holding in story.holders]
    held = [timeline.span_of_event(event) for event in story.events if _was_held(event)]
    held += [timeline.span_of_holding(holding, activity.now) for holding in story.holders]
    name, waited = printable(story.name), [wait for wait in waits if wait]
    return Row(name, name, held, waited, href=address(story.name))


def _was_held(event: Event) -> bool:
    return event.acquired_at is not None or event.outcome == "lost"


def _name_row(story: Story, activity: Activity, address: Address) -> Cells:
    held = _held_seconds(story, activity.now, activity.since)
    part = share(held, activity.minutes * 60)
    counts = story.counts
    counts["stale"] = sum(state_of_holding(holding) is STALE for holding in story.holders)
    counts["held"] = len(story.holders) - counts["stale"]
    return Cells(
        name=printable(story.name),
        href=address(story.name),
        holds=sum(map(_was_held, story.events)) + len(story.holders),
        held=short_duration(held),
        part=_("%(percent)s %%") % {"percent": number_format(part, 1)},
        waited=short_duration(sum(story.waits)) if story.waits else "",
        outcomes=[(each, counts[each.what]) for each in OUTCOMES.values() if counts[each.what]],
    )


# Contention


def contention(activity: Activity, address: Address) -> list[Cells]:
    """Return the locks that were waited for or refused: first those that most wait for now, whose
    waits are not over yet, then the longest wait."""
    stories = _contended(activity.stories.values())
    top = max((max(story.waits, default=0.0) for story in stories), default=0.0)
    return [_contention_row(story, top, address) for story in stories]


def _contended(stories: Iterable[Story]) -> list[Story]:
    wanted = [story for story in stories if any(_contention(story))]
    return sorted(wanted, key=_contention, reverse=True)[:CONTENDED]


def _contention(story: Story) -> tuple[int, float, int]:
    counts = story.counts
    return story.waiters, max(story.waits, default=0.0), counts["refused"] + counts["skipped"]


def _contention_row(story: Story, top: float, address: Address) -> Cells:
    waits, counts = story.waits, story.counts
    return Cells(
        name=printable(story.name),
        href=address(story.name),
        longest=short_duration(max(waits)) if waits else "",
        median=short_duration(median(waits)) if waits else "",
        total=short_duration(sum(waits)) if waits else "",
        waits=len(waits),
        waiters=story.waiters,
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
            went_wrong=what in WENT_WRONG,
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
        what: str(outcome(what).word) for what in ("refused", *WENT_WRONG)
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
    """Return in a sentence how far back what is kept goes; nothing if nothing is kept."""
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
