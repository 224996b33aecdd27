"""The timeline of one lock: for each of its holders and waiters a row with bars, and a mark where
a hold ended.

Positions along the axis of time are percentages of its width, so that a chart is as wide as its
page and its texts keep their size. Heights are in pixels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import SimpleNamespace

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext, pgettext_lazy

from ..lock_state import (
    HANDOVER,
    HELD,
    LATE,
    QUEUED,
    STALE,
    STATES,
    UNRENEWED,
    LockState,
    state_of_holding,
)
from ..snapshots import Event, Holder, Holding, Waiter
from ..text import clock_text, printable, process_text, short_duration, thread_text

ROW_PIXELS = 26
HEAD_PIXELS = 24  # for the times above the first row
HOLD_PIXELS = (5, 12)  # the top of a bar in its row, and its height
WAIT_PIXELS = (9, 4)  # the same for a wait
MIN_BAR_PERCENT = 0.3  # so that each bar is visible
TIMES = {0: "start", 25: "middle", 50: "middle", 75: "middle", 100: "end"}
"""The places of the times above a chart, and which part of its text is there."""

DATES_ONLY = timedelta(days=2)
"""A chart of a longer time has only the date at each place on another day than today."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a hold or a wait ended, or how it stands: a word, and what that means."""

    what: str  # its name in the data, in the style sheet and in the ids of the marks
    word: str | Promise
    meaning: str | Promise

    @classmethod
    def of(cls, state: LockState) -> Outcome:
        return cls(state.code, state.label, state.meaning)

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
        *map(Outcome.of, (HELD, UNRENEWED, LATE, HANDOVER, QUEUED)),
        Outcome("acquired", pgettext_lazy("of a lock", "acquired"), ""),
        Outcome("waiting", pgettext_lazy("of a lock", "waiting"), _("it waited in the queue")),
        Outcome("released", pgettext_lazy("of a lock", "released"), _("by its holder")),
        Outcome("passed", pgettext_lazy("of a lock", "passed on"), _("to the next holder")),
        Outcome("skipped", pgettext_lazy("of a lock", "skipped"), _("a task did not run")),
        Outcome("refused", pgettext_lazy("of a lock", "refused"), _("it was not acquired")),
        Outcome.of(STALE),
        Outcome("forced", pgettext_lazy("of a lock", "forced"), _("released by an operator")),
        Outcome("killed", pgettext_lazy("of a lock", "killed"), _("its process was ended")),
        Outcome("expired", pgettext_lazy("of a lock", "expired"), _("its lease expired")),
        Outcome("lost", pgettext_lazy("of a lock", "lost"), _("its holder outlived its lease")),
    )
}


def outcome(what: str) -> Outcome:
    return OUTCOMES.get(what) or Outcome(what, what, "")


def legend(whats: Iterable[str]) -> list[Outcome]:
    """Return the outcomes that occur, the unusual ones last."""
    occurring = set(whats)
    return [each for each in OUTCOMES.values() if each.what in occurring]


@dataclass(frozen=True, slots=True)
class Span:
    """A hold or a wait."""

    start: datetime
    end: datetime
    what: str  # the outcome or the state: a class in the style sheet


@dataclass(frozen=True, slots=True)
class Row:
    """A holder or a waiter."""

    holder: Holder
    note: str
    spans: tuple[Span, ...]

    @property
    def label(self) -> str:
        return process_text(self.holder) if self.holder.task_name else thread_text(self.holder)


def timeline(
    events: Sequence[Event], holdings: Sequence[Holding], waiters: Sequence[Waiter], now: datetime
) -> SimpleNamespace | None:
    """Return the timeline of one lock, as its template reads it. Events come latest first."""
    rows = [event_row(event, now) for event in reversed(events)]
    rows += [holding_row(holding, now) for holding in holdings]
    rows += [waiter_row(waiter, now) for waiter in waiters]
    if not rows:
        return None
    start = min(row.spans[0].start for row in rows)
    lasted = max(now - start, timedelta(seconds=1))

    def place(at: datetime) -> float:
        return round((at - start) / lasted * 100, 2)

    bars, marks = [], []
    for number, row in enumerate(rows):
        for span in row.spans:
            shown = outcome(span.what)
            top, height = WAIT_PIXELS if shown.is_wait else HOLD_PIXELS
            y = HEAD_PIXELS + ROW_PIXELS * number + top
            x, end = place(span.start), place(span.end)
            width = max(round(end - x, 2), MIN_BAR_PERCENT)
            about = {"what": shown.what, "height": height, "title": _title(span)}
            bars.append(SimpleNamespace(x=min(x, 100 - width), y=y, width=width, **about))
            if shown.is_end:
                marks.append(SimpleNamespace(x=end, y=y + height // 2, what=shown.what))
    return SimpleNamespace(
        rows=rows,
        height=HEAD_PIXELS + ROW_PIXELS * len(rows),
        times=_times(start, lasted, now),
        bars=bars,
        marks=marks,
        legend=legend(bar.what for bar in bars),
    )


def _times(start: datetime, lasted: timedelta, now: datetime) -> list[SimpleNamespace]:
    """Return the times above the chart. A text is empty if it would repeat the one before it."""
    times: list[SimpleNamespace] = []
    before = ""
    for x, anchor in TIMES.items():
        text = clock_text(start + lasted * x / 100, now)
        if lasted > DATES_ONLY:
            text = text.partition(" ")[0]  # with the time of day, they would run into each other
        times.append(SimpleNamespace(x=x, anchor=anchor, text="" if text == before else text))
        before = text
    return times


def event_row(event: Event, now: datetime) -> Row:
    """Return the wait of an event, and its hold if there was one."""
    end = event.acquired_at or event.at
    note = clock_text(event.at, now)
    if was_held(event):
        hold = Span(end, event.at, event.outcome)
        return Row(event.holder, note, (*_waited(end, event.waited), hold))
    wait = Span(end - timedelta(seconds=event.waited), end, event.outcome)
    return Row(event.holder, note, (wait,))


def holding_row(holding: Holding, now: datetime) -> Row:
    start = min(holding.acquired_at, now)
    hold = Span(start, now, state_of_holding(holding).code)
    return Row(
        holding.holder, pgettext("of a lock", "now"), (*_waited(start, holding.waited), hold)
    )


def waiter_row(waiter: Waiter, now: datetime) -> Row:
    wait = Span(min(waiter.since, now), now, "waiting")
    return Row(waiter.holder, pgettext("of a lock", "waits"), (wait,))


def _waited(end: datetime, seconds: float) -> list[Span]:
    return [Span(end - timedelta(seconds=seconds), end, "waiting")] if seconds else []


def was_held(event: Event) -> bool:
    return event.acquired_at is not None or event.outcome == "lost"


def _title(span: Span) -> str:
    lasted = short_duration((span.end - span.start).total_seconds())
    times = f"{clock_text(span.start)} - {clock_text(span.end)} ({lasted})"
    return f"{times} · {outcome(span.what).word}"


def who(holder: Holder) -> str:
    """Return the process and thread, or the task's name and its process."""
    if not holder.task_name:
        return thread_text(holder)
    return f"{printable(holder.task_name)} ({process_text(holder)})"
