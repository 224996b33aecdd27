"""The data of a drawn timeline: rows of bars, marks at their ends, and times above."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from ..advice import process_text
from ..lock_state import STALE, state_of_holding
from ..snapshots import Event, Holder, Holding, Waiter
from ..text import printable, short_duration
from .charts import HEAD, ROW, Bar, Scale, Span, fitted, ticks
from .outcomes import Outcome, legend, outcome

MOST_BARS = 120
"""The maximum number of bars of holds in one chart, in addition to one in each row."""

MOST_WAITS = 60
"""The same limit for bars of waits."""

BAR = (5, 12)
"""The top of a bar in its row, and its height, in pixels."""

BELOW = (20, 4)
"""The same for a wait that is drawn below the holds of the same time."""

BEFORE = (9, 4)
"""The same for a wait that is drawn before the hold that followed."""


Shape = SimpleNamespace
"""A bar, a mark or a time of a drawn timeline."""


@dataclass(slots=True)
class Row:
    """The history of one lock or one holder."""

    label: str
    title: str = ""
    held: Sequence[Span] = ()
    waited: Sequence[Span] = ()
    note: str = ""
    lock: str = ""
    """The lock whose page the label leads to."""


@dataclass(slots=True)
class Timeline:
    rows: Sequence[Row]
    scale: Scale
    height: int
    times: Sequence[Shape]
    rects: list[Shape] = field(default_factory=list)
    marks: list[Shape] = field(default_factory=list)
    legend: Sequence[Outcome] = ()
    has_many: bool = False
    """Whether some bars are several spans that are too near to each other."""

    mark_all: bool = False
    """Whether usual ends are marked, too."""

    unknown: float = 0.0
    """The part on the left without a complete history, in percent of the axis."""


def draw(
    rows: Sequence[Row], scale: Scale, *, waits: tuple[int, int], mark_all: bool = False
) -> Timeline:
    """Return the timeline of some rows; `waits` is `BELOW` or `BEFORE`."""
    height = HEAD + ROW * len(rows)
    chart = Timeline(rows, scale, height, times(scale), mark_all=mark_all)
    whats: set[str] = set()
    for lane, spans, most in (
        (waits, [row.waited for row in rows], MOST_WAITS),
        (BAR, [row.held for row in rows], MOST_BARS),
    ):
        for number, found in enumerate(fitted(spans, scale, most)):
            top = HEAD + ROW * number + lane[0]
            for bar in found:
                chart.rects.append(
                    Shape(
                        x=bar.x,
                        y=top,
                        width=bar.width,
                        height=lane[1],
                        what=bar.what,
                        # Several holders at the same time are not drawn as several short holds.
                        is_many=bar.is_many and not bar.first.is_running,
                        title=_title(bar),
                    )
                )
                last = bar.weightiest
                end = outcome(last.what)
                if end.weight or (mark_all and end.is_end):
                    middle = top + lane[1] // 2
                    chart.marks.append(Shape(x=scale.x(last.end), y=middle, what=last.what))
            whats.update(span.what for bar in found for span in bar.spans)
    chart.legend = legend(whats)
    chart.has_many = any(rect.is_many for rect in chart.rects)
    return chart


def _title(bar: Bar) -> str:
    if not bar.is_many:
        return bar.first.text()
    counts = Counter(span.what for span in bar.spans)
    parts = [
        _("%(count)d %(outcome)s") % {"count": counts[each.what], "outcome": each.word}
        for each in legend(counts)
    ]
    last = max(span.end for span in bar.spans)
    time = f"{clock(bar.first.start)} - {clock(last)}"
    return _("%(time)s: %(counts)s") % {"time": time, "counts": listed(parts)}


def times(scale: Scale) -> list[Shape]:
    """Return the times above a chart."""
    zone = timezone.get_current_timezone()
    found = ticks(scale, zone)
    exact = any(timezone.localtime(tick.at).second for tick in found)
    if exact:  # a time with seconds is wider
        found = ticks(scale, zone, most=5)
    days = scale.seconds > 86400
    form = "%m-%d %H:%M" if days else "%H:%M:%S" if exact else "%H:%M"
    return [Shape(tick=tick, text=timezone.localtime(tick.at).strftime(form)) for tick in found]


def scale_of(spans: Sequence[Span], now: datetime) -> Scale:
    """Return a scale that shows all spans and the present.

    It is at least one second long, so that at least one full second is labeled.
    """
    start = min((span.start for span in spans), default=now)
    room = max((now - start) * 0.02, timedelta(seconds=1))
    return Scale(start, now + room)


# Spans of events, holders and waiters


def span_of_event(event: Event) -> Span:
    """Return the hold. It has no length if the lock was not acquired."""
    start = event.acquired_at or event.at
    text = partial(_held_text, event.holder, start, event.at, event.outcome)
    return Span(start, event.at, event.outcome, text, outcome(event.outcome).weight)


def span_of_holding(holding: Holding, now: datetime) -> Span:
    what = "stale" if state_of_holding(holding) is STALE else "held"
    start = min(holding.acquired_at, now)
    text = partial(_held_text, holding.holder, start, now, what)
    return Span(start, now, what, text, outcome(what).weight, is_running=True)


def wait_of_event(event: Event) -> Span | None:
    """Return the time in the queue, or None without a wait. A refusal always has one."""
    was_held = event.acquired_at is not None or event.outcome == "lost"
    if was_held and event.waited <= 0:
        return None
    what = "waiting" if was_held else event.outcome
    return _wait(event.holder, event.acquired_at or event.at, event.waited, what)


def wait_of_holding(holding: Holding) -> Span | None:
    if holding.waited <= 0:
        return None
    return _wait(holding.holder, holding.acquired_at, holding.waited, "waiting")


def wait_of_waiter(waiter: Waiter, now: datetime) -> Span:
    text = partial(_waited_text, waiter.holder, waiter.since, waiter.waited, "waiting")
    return Span(min(waiter.since, now), now, "waiting", text)


def _wait(holder: Holder, end: datetime, seconds: float, what: str) -> Span:
    start = end - timedelta(seconds=seconds)
    text = partial(_waited_text, holder, start, seconds, what)
    return Span(start, end, what, text, outcome(what).weight)


def _held_text(holder: Holder, start: datetime, end: datetime, what: str) -> str:
    lasted = short_duration((end - start).total_seconds())
    return f"{who(holder)} · {clock(start)} - {clock(end)} ({lasted}) · {outcome(what).word}"


def _waited_text(holder: Holder, start: datetime, seconds: float, what: str) -> str:
    parts = {"time": short_duration(seconds), "since": clock(start)}
    waited = _("waited %(time)s from %(since)s on") % parts
    return f"{who(holder)} · {waited} · {outcome(what).word}"


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
