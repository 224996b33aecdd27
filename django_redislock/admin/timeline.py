"""Timelines: rows of bars along an axis of time, with marks at their ends.

Positions along the axis are percentages of its width, so that a chart is as wide as its page and
its texts keep their size. Heights are in pixels.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import SimpleNamespace

from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from ..lock_state import (
    HANDOVER,
    HELD,
    LATE,
    QUEUED,
    STALE,
    STATES,
    UNRENEWED,
    state_of_holding,
)
from ..snapshots import Event, Holder, Holding
from ..text import clock_text, printable, process_text, short_duration

ROW_PIXELS = 26
HEAD_PIXELS = 24  # for the times above the first row
BAR_PIXELS = (5, 12)  # the top of a bar in its row, and its height
WAIT_PIXELS = (20, 4)  # the same for a wait, which is drawn below the holds of the same time
MIDDLE_PIXELS = 9  # the top of a wait in a row without holds
GAP_PERCENT = 0.12  # between a bar and the next one
MIN_BAR_PERCENT = 0.3  # so that each bar is visible
MAX_BARS = 1500  # approximately: bars of one outcome that begin near each other become one bar
MIN_DISTANCE_PERCENT = 0.5  # the distance below which that is the case in a chart with few rows
STEPS_SECONDS = (
    *(1, 2, 5, 10, 15, 30),
    *(60 * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(3600 * hours for hours in (1, 2, 3, 6, 12, 24, 48, 168, 336, 672)),
)  # between two times above a chart


@dataclass(frozen=True, slots=True)
class Outcome:
    what: str  # its name in the data, in the style sheet and in the ids of the marks
    word: str | Promise
    meaning: str | Promise
    weight: int = 0  # above 0, the outcome is unusual, and each chart marks it

    @property
    def is_end(self) -> bool:
        return self.what not in (*STATES, "waiting")

    @property
    def is_wait(self) -> bool:
        """Whether the span is a wait in the queue and not a hold."""
        return self.what in ("waiting", "skipped", "refused")


OUTCOMES = {
    each.what: each
    for each in (
        *(Outcome(each.code, each.label, each.meaning) for each in (HELD, UNRENEWED, LATE)),
        *(Outcome(each.code, each.label, each.meaning) for each in (HANDOVER, QUEUED)),
        Outcome("acquired", pgettext_lazy("of a lock", "acquired"), ""),
        Outcome("waiting", pgettext_lazy("of a lock", "waiting"), _("it waited in the queue")),
        Outcome("released", pgettext_lazy("of a lock", "released"), _("by its holder")),
        Outcome("passed", pgettext_lazy("of a lock", "passed on"), _("to the next holder")),
        Outcome("skipped", pgettext_lazy("of a lock", "skipped"), _("a task did not run"), 1),
        Outcome("refused", pgettext_lazy("of a lock", "refused"), _("it was not acquired"), 2),
        Outcome("stale", STALE.label, STALE.meaning, 3),
        Outcome("forced", pgettext_lazy("of a lock", "forced"), _("released by an operator"), 4),
        Outcome("killed", pgettext_lazy("of a lock", "killed"), _("its process was ended"), 5),
        Outcome("expired", pgettext_lazy("of a lock", "expired"), _("its lease expired"), 6),
        Outcome("lost", pgettext_lazy("of a lock", "lost"), _("its holder outlived its lease"), 7),
    )
}


def outcome(what: str) -> Outcome:
    return OUTCOMES.get(what) or Outcome(what, what, "")


def legend(whats: Iterable[str]) -> list[Outcome]:
    """Return the outcomes that occur, in the order of their weights."""
    occurring = set(whats)
    return [each for each in OUTCOMES.values() if each.what in occurring]


@dataclass(frozen=True, slots=True)
class Scale:
    """The time that is drawn, from the left edge to the right one."""

    start: datetime
    end: datetime

    def x(self, at: datetime) -> float:
        """Return the position of a moment, at the edge if it is off the scale."""
        part = (at - self.start) / (self.end - self.start)
        return round(min(max(part, 0.0), 1.0) * 100, 2)


@dataclass(frozen=True, slots=True)
class Span:
    """A hold or a wait."""

    start: datetime
    end: datetime
    what: str  # the outcome or the state: a class in the style sheet
    holder: Holder | None  # None: unknown
    is_running: bool = False  # whether it is a hold that is not over yet


@dataclass(slots=True)
class Row:
    """The history of one lock or one holder."""

    label: str
    note: str = ""
    lock: str = ""  # the lock whose page the label leads to
    spans: list[Span] = field(default_factory=list)

    @property
    def has_holds(self) -> bool:
        return not all(outcome(span.what).is_wait for span in self.spans)

    def add_event(self, event: Event) -> None:
        """Add the hold and the wait of an event. A refusal always has a wait."""
        end = event.acquired_at or event.at
        if was_held(event):
            self.spans.append(Span(end, event.at, event.outcome, event.holder))
            self._add_wait(event.holder, end, event.waited)
        else:
            self._add_wait(event.holder, end, event.waited, event.outcome)

    def add_holding(self, holding: Holding, now: datetime) -> None:
        start, what = min(holding.acquired_at, now), outcome_of(holding)
        self.spans.append(Span(start, now, what, holding.holder, is_running=True))
        self._add_wait(holding.holder, holding.acquired_at, holding.waited)

    def add_waiter(self, since: datetime, now: datetime, holder: Holder | None = None) -> None:
        self.spans.append(Span(min(since, now), now, "waiting", holder))

    def _add_wait(
        self, holder: Holder, end: datetime, seconds: float, what: str = "waiting"
    ) -> None:
        if seconds > 0 or what != "waiting":
            start = end - timedelta(seconds=seconds)
            self.spans.append(Span(start, end, what, holder))


def outcome_of(holding: Holding) -> str:
    return state_of_holding(holding).code


def was_held(event: Event) -> bool:
    return event.acquired_at is not None or event.outcome == "lost"


def draw(
    rows: Sequence[Row], scale: Scale, *, mark_all: bool = False, unknown: float = 0.0
) -> SimpleNamespace:
    """Return the timeline of some rows, as its template reads it. With `mark_all`, usual ends are
    marked, too. The history is not complete in the part `unknown` on the left."""
    rects, marks = [], []
    distance = max(100 * len(rows) / MAX_BARS, MIN_DISTANCE_PERCENT)
    for number, row in enumerate(rows):
        for near in _joined(row.spans, scale, distance):
            shown, x = outcome(near[0].what), scale.x(near[0].start)
            top, height = WAIT_PIXELS if shown.is_wait else BAR_PIXELS
            if not row.has_holds:
                top = MIDDLE_PIXELS
            y = HEAD_PIXELS + ROW_PIXELS * number + top
            end = scale.x(max(span.end for span in near))
            width = max(round(end - x - GAP_PERCENT, 2), MIN_BAR_PERCENT)
            rects.append(
                SimpleNamespace(
                    x=round(min(x, 100 - width), 2),
                    y=y,
                    width=width,
                    height=height,
                    what=shown.what,
                    # Several holders at the same time are not drawn as several short holds.
                    is_many=len(near) > 1 and not near[0].is_running,
                    title=_title(near),
                )
            )
            if shown.weight or (mark_all and shown.is_end):
                marks.append(SimpleNamespace(x=end, y=y + height // 2, what=shown.what))
    return SimpleNamespace(
        rows=rows,
        height=HEAD_PIXELS + ROW_PIXELS * len(rows),
        times=times(scale),
        rects=rects,
        marks=marks,
        legend=legend(rect.what for rect in rects),
        has_many=any(rect.is_many for rect in rects),
        mark_all=mark_all,
        unknown=unknown,
    )


def _joined(spans: Sequence[Span], scale: Scale, distance: float) -> list[list[Span]]:
    """Return the spans of each bar of a row. Those that need attention come last, so that they are
    drawn on top. A hold that is not over yet is drawn as one with its like only."""
    groups: dict[tuple[str, int | None], list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.start):
        if span.end >= scale.start and span.start <= scale.end:
            place = None if span.is_running else int(scale.x(span.start) / distance)
            groups[span.what, place].append(span)
    return sorted(groups.values(), key=lambda near: outcome(near[0].what).weight)


def _title(spans: Sequence[Span]) -> str:
    first, last = spans[0], max(span.end for span in spans)
    time = f"{clock_text(first.start)} - {clock_text(last)}"
    if len(spans) > 1:
        facts = {"time": time, "count": len(spans), "outcome": outcome(first.what).word}
        return gettext("%(time)s: %(count)d %(outcome)s") % facts
    lasted = short_duration((first.end - first.start).total_seconds())
    holder = f"{who(first.holder)} · " if first.holder else ""
    return f"{holder}{time} ({lasted}) · {outcome(first.what).word}"


def times(scale: Scale) -> list[SimpleNamespace]:
    """Return at most seven times above a chart that are round in Django's current time zone."""
    start = scale.start.astimezone(timezone.get_current_timezone())
    seconds = (scale.end - scale.start).total_seconds()
    # A time with seconds is wider.
    steps = (step for step in STEPS_SECONDS if seconds / step <= (4 if step < 60 else 6))
    step = next(steps, math.ceil(seconds / 6))
    midnight = start.replace(hour=0, minute=0, second=0, microsecond=0)
    at = midnight + timedelta(seconds=step) * math.ceil((start - midnight).total_seconds() / step)
    form = "%m-%d %H:%M" if seconds > 86400 else "%H:%M:%S" if step < 60 else "%H:%M"
    found = []
    while at <= scale.end:
        x = scale.x(at)
        anchor = "start" if x < 4 else "end" if x > 96 else "middle"  # no text is cut off
        found.append(SimpleNamespace(x=x, anchor=anchor, text=at.strftime(form)))
        at += timedelta(seconds=step)
    return found


def who(holder: Holder) -> str:
    """Return host and process, or the task's name and these."""
    if not holder.task_name:
        return process_text(holder)
    return f"{printable(holder.task_name)} ({process_text(holder)})"
