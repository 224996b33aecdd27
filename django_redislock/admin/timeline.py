"""Timelines: rows of bars along an axis of time, with marks at their ends.

Positions along the axis are percentages of its width, so that a chart is as wide as its page and
its texts keep their size. Heights are in pixels.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from ..advice import process_text
from ..lock_state import STALE, state_of_holding
from ..snapshots import Event, Holder, Holding, Waiter
from ..text import printable, short_duration
from .outcomes import legend, outcome

ROW = 26
"""The height of a row."""

HEAD = 24
"""The height of the times above the first row."""

BAR = (5, 12)
"""The top of a bar in its row, and its height."""

BELOW = (20, 4)
"""The same for a wait that is drawn below the holds of the same time."""

BEFORE = (9, 4)
"""The same for a wait that is drawn before the hold that followed."""

GUTTER = 0.12
"""The gap between a bar and the next one."""

THINNEST = 0.3
"""The minimum width of a bar, so that it is visible."""

MOST_BARS = 20
"""The maximum number of bars of one row. If it has more, near ones are drawn as one."""

DISTANCES = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 100.0)
"""The distances below which bars are drawn as one."""

STEPS_SECONDS = (
    *(1, 2, 5, 10, 15, 30),
    *(60 * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(3600 * hours for hours in (1, 2, 3, 6, 12, 24, 48, 168, 336, 672)),
)
"""The seconds between two times above a chart."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The time that is drawn, from the left edge to the right one."""

    start: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        return (self.end - self.start).total_seconds()

    def x(self, at: datetime) -> float:
        """Return the position of a moment, at the edge if it is off the scale."""
        part = (at - self.start) / (self.end - self.start)
        return round(min(max(part, 0.0), 1.0) * 100, 2)


@dataclass(frozen=True, slots=True)
class Span:
    """A hold or a wait."""

    start: datetime
    end: datetime

    what: str
    """The outcome or the state: a class in the style sheet."""

    holder: Holder

    is_wait: bool = False

    is_running: bool = False
    """Whether it is a hold that is not over yet. It is then drawn as one with its like only."""


@dataclass(slots=True)
class Row:
    """The history of one lock or one holder."""

    label: str
    title: str = ""
    note: str = ""
    lock: str = ""
    """The lock whose page the label leads to."""

    held: list[Span] = field(default_factory=list)
    waited: list[Span] = field(default_factory=list)

    def add_event(self, event: Event) -> None:
        """Add the hold and the wait of an event. A refusal always has a wait."""
        end = event.acquired_at or event.at
        if was_held(event):
            self.held.append(Span(end, event.at, event.outcome, event.holder))
            self._add_wait(event.holder, end, event.waited)
        else:
            self._add_wait(event.holder, end, event.waited, event.outcome)

    def add_holding(self, holding: Holding, now: datetime) -> None:
        what = "stale" if state_of_holding(holding) is STALE else "held"
        start = min(holding.acquired_at, now)
        self.held.append(Span(start, now, what, holding.holder, is_running=True))
        self._add_wait(holding.holder, holding.acquired_at, holding.waited)

    def add_waiter(self, waiter: Waiter, now: datetime) -> None:
        start = min(waiter.since, now)
        self.waited.append(Span(start, now, "waiting", waiter.holder, is_wait=True))

    def _add_wait(
        self, holder: Holder, end: datetime, seconds: float, what: str = "waiting"
    ) -> None:
        if seconds > 0 or what != "waiting":
            start = end - timedelta(seconds=seconds)
            self.waited.append(Span(start, end, what, holder, is_wait=True))


def was_held(event: Event) -> bool:
    return event.acquired_at is not None or event.outcome == "lost"


@dataclass(frozen=True, slots=True)
class Bar:
    """One span, or several that are too near to each other to be drawn apart."""

    x: float
    width: float
    spans: tuple[Span, ...]

    @property
    def weightiest(self) -> Span:
        """Of several that weigh the same, the last."""
        return max(reversed(self.spans), key=lambda span: outcome(span.what).weight)

    @property
    def what(self) -> str:
        """The most frequent outcome, which gives the bar its colour."""
        return Counter(span.what for span in self.spans).most_common(1)[0][0]


def _bars(spans: Sequence[Span], scale: Scale) -> list[Bar]:
    """Return the bars of a row, few enough to be drawn."""
    for distance in DISTANCES:
        bars = _joined(spans, scale, distance)
        if len(bars) <= MOST_BARS:
            break
    return bars


def _joined(spans: Sequence[Span], scale: Scale, distance: float) -> list[Bar]:
    """Return the bars of a row. Spans that are nearer than `distance` are one bar.

    A running span keeps its color: it is never joined with spans that have ended. Running
    spans come last, so that they are drawn on top.
    """
    groups: dict[str, list[Bar]] = {"": []}
    for span in sorted(spans, key=lambda span: span.start):
        if span.end < scale.start or span.start > scale.end:
            continue
        found = groups.setdefault(span.what if span.is_running else "", [])
        x = scale.x(span.start)
        width = max(round(scale.x(span.end) - x - GUTTER, 2), THINNEST)
        bar = Bar(round(min(x, 100 - width), 2), width, (span,))
        last = found[-1] if found else None
        if last and bar.x - round(last.x + last.width, 2) < distance - 0.005:
            width = round(max(last.x + last.width, bar.x + bar.width) - last.x, 2)
            found[-1] = Bar(last.x, width, last.spans + bar.spans)
        else:
            found.append(bar)
    return [bar for found in groups.values() for bar in found]


def draw(
    rows: Sequence[Row],
    scale: Scale,
    *,
    waits: tuple[int, int],
    mark_all: bool = False,
    unknown: float = 0.0,
) -> SimpleNamespace:
    """Return the timeline of some rows, as its template reads it.

    Args:
        rows: The rows.
        scale: The time that is drawn.
        waits: The place of waits: `BELOW` or `BEFORE`.
        mark_all: Whether usual ends are marked, too.
        unknown: The part on the left without a complete history.
    """
    rects, marks = [], []
    whats: set[str] = set()
    for (top, height), is_wait in ((waits, True), (BAR, False)):
        for number, row in enumerate(rows):
            y = HEAD + ROW * number + top
            for bar in _bars(row.waited if is_wait else row.held, scale):
                # Several holders at the same time are not drawn as several short holds.
                is_many = len(bar.spans) > 1 and not bar.spans[0].is_running
                place = {"x": bar.x, "y": y, "width": bar.width, "height": height}
                title = _title(bar.spans)
                rects.append(SimpleNamespace(**place, what=bar.what, is_many=is_many, title=title))
                last = bar.weightiest
                end = outcome(last.what)
                if end.weight or (mark_all and end.is_end):
                    marks.append(
                        SimpleNamespace(x=scale.x(last.end), y=y + height // 2, what=last.what)
                    )
                whats.update(span.what for span in bar.spans)
    return SimpleNamespace(
        rows=rows,
        height=HEAD + ROW * len(rows),
        times=times(scale),
        rects=rects,
        marks=marks,
        legend=legend(whats),
        has_many=any(rect.is_many for rect in rects),
        mark_all=mark_all,
        unknown=unknown,
    )


def _title(spans: Sequence[Span]) -> str:
    first, last = spans[0], max(span.end for span in spans)
    time = f"{clock(first.start)} - {clock(last)}"
    if len(spans) > 1:
        counts = Counter(span.what for span in spans)
        parts = [
            _("%(count)d %(outcome)s") % {"count": counts[each.what], "outcome": each.word}
            for each in legend(counts)
        ]
        return _("%(time)s: %(counts)s") % {"time": time, "counts": listed(parts)}
    lasted = short_duration((first.end - first.start).total_seconds())
    text = f"{time} ({lasted})"
    if first.is_wait:
        text = _("waited %(time)s from %(since)s on")
        text %= {"time": lasted, "since": clock(first.start)}
    return f"{who(first.holder)} · {text} · {outcome(first.what).word}"


def times(scale: Scale) -> list[SimpleNamespace]:
    """Return at most five times above a chart that are round in Django's current time zone."""
    start = scale.start.astimezone(timezone.get_current_timezone())
    steps = (step for step in STEPS_SECONDS if scale.seconds / step <= 4)
    step = next(steps, math.ceil(scale.seconds / 4))
    midnight = start.replace(hour=0, minute=0, second=0, microsecond=0)
    at = midnight + timedelta(seconds=step) * math.ceil((start - midnight).total_seconds() / step)
    form = "%m-%d %H:%M" if scale.seconds > 86400 else "%H:%M:%S" if step < 60 else "%H:%M"
    found = []
    while at <= scale.end:
        x = scale.x(at)
        anchor = "start" if x < 4 else "end" if x > 96 else "middle"  # no text is cut off
        found.append(SimpleNamespace(x=x, anchor=anchor, text=at.strftime(form)))
        at += timedelta(seconds=step)
    return found


def listed(words: Iterable[str]) -> str:
    """Return words as a list, with the separator of the language."""
    return pgettext("between words of a list", ", ").join(words)


def who(holder: Holder) -> str:
    """Return host and process, or the task's name and these."""
    if not holder.task_name:
        return process_text(holder)
    return f"{printable(holder.task_name)} ({process_text(holder)})"


def clock(at: datetime, now: datetime | None = None) -> str:
    """Return the time of day in Django's current time zone, with the date if it is not today."""
    local = timezone.localtime(at)
    today = timezone.localtime(now or datetime.now(UTC)).date()
    return local.strftime("%H:%M:%S" if local.date() == today else "%Y-%m-%d %H:%M:%S")
