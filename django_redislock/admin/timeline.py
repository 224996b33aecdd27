"""The data of a drawn timeline: rows of bars, marks at their ends, and times above."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from ..advice import process_text
from ..lock_state import STALE, state_of_holding
from ..snapshots import Event, Holder, Holding, Waiter
from ..text import printable, short_duration
from .charts import HEAD, ROW, Scale, Span, fitted, ticks
from .outcomes import legend, outcome

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
        unknown: The part on the left without a complete history, in percent of the axis.
    """
    rects, marks, has_many = [], [], False
    whats: set[str] = set()
    for (lane, high), spans, most in (
        (waits, [row.waited for row in rows], MOST_WAITS),
        (BAR, [row.held for row in rows], MOST_BARS),
    ):
        for number, bars in enumerate(fitted(spans, scale, most)):
            y = HEAD + ROW * number + lane
            for bar in bars:
                # Several holders at the same time are not drawn as several short holds.
                is_many = len(bar.spans) > 1 and not bar.spans[0].is_running
                rects.append(
                    SimpleNamespace(
                        x=bar.x,
                        y=y,
                        width=bar.width,
                        height=high,
                        what=bar.what,
                        is_many=is_many,
                        title=_title(bar.spans),
                    )
                )
                has_many = has_many or is_many
                last = bar.weightiest
                if last.weight or (mark_all and outcome(last.what).is_end):
                    marks.append(
                        SimpleNamespace(x=scale.x(last.end), y=y + high // 2, what=last.what)
                    )
                whats.update(span.what for span in bar.spans)
    return SimpleNamespace(
        rows=rows,
        height=HEAD + ROW * len(rows),
        times=times(scale),
        rects=rects,
        marks=marks,
        legend=legend(whats),
        has_many=has_many,
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
    """Return the times above a chart, with the part of each text that is at its time."""
    zone = timezone.get_current_timezone()
    found = ticks(scale, zone)
    exact = any(at.second for at in found)
    if exact:  # a time with seconds is wider
        found = ticks(scale, zone, most=5)
    days = scale.seconds > 86400
    form = "%m-%d %H:%M" if days else "%H:%M:%S" if exact else "%H:%M"
    shapes = []
    for at in found:
        x = scale.x(at)
        anchor = "start" if x < 4 else "end" if x > 96 else "middle"  # no text is cut off
        shapes.append(
            SimpleNamespace(x=x, anchor=anchor, text=timezone.localtime(at).strftime(form))
        )
    return shapes


def scale_of(spans: Sequence[Span], now: datetime) -> Scale:
    """Return a scale that shows all spans and the present.

    It is at least one second long, so that at least one full second is labeled.
    """
    start = min((span.start for span in spans), default=now)
    room = max((now - start) * 0.02, timedelta(seconds=1))
    return Scale(start, now + room)


# Spans of events, holders and waiters


def was_held(event: Event) -> bool:
    return event.acquired_at is not None or event.outcome == "lost"


def span_of_event(event: Event) -> Span:
    """Return the hold. It has no length if the lock was not acquired."""
    start = event.acquired_at or event.at
    return Span(start, event.at, event.outcome, event.holder, outcome(event.outcome).weight)


def span_of_holding(holding: Holding, now: datetime) -> Span:
    what = "stale" if state_of_holding(holding) is STALE else "held"
    start, weight = min(holding.acquired_at, now), outcome(what).weight
    return Span(start, now, what, holding.holder, weight, is_running=True)


def wait_of_event(event: Event) -> Span | None:
    """Return the time in the queue, or None without a wait. A refusal always has one."""
    if not was_held(event):
        return _wait(event.holder, event.at, event.waited, event.outcome)
    return _wait(event.holder, event.acquired_at or event.at, event.waited)


def wait_of_holding(holding: Holding) -> Span | None:
    return _wait(holding.holder, holding.acquired_at, holding.waited)


def wait_of_waiter(waiter: Waiter, now: datetime) -> Span:
    return Span(min(waiter.since, now), now, "waiting", waiter.holder, is_wait=True)


def _wait(holder: Holder, end: datetime, seconds: float, what: str = "waiting") -> Span | None:
    if seconds <= 0 and what == "waiting":
        return None
    start = end - timedelta(seconds=seconds)
    return Span(start, end, what, holder, outcome(what).weight, is_wait=True)


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
