"""The geometry of the charts: from times and counts to positions, without words and colors.

Positions along the axis are percentages of its width, so that a chart is as wide as its page and
its texts keep their size. Heights are in pixels.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import count, takewhile
from operator import attrgetter

from ..snapshots import Holder

ROW = 26
"""The height of a row of a timeline, in pixels."""

HEAD = 24
"""The height of the times above the first row, in pixels."""

GUTTER = 0.12
"""The gap between a bar and the next one, in percent of the axis."""

THINNEST = 0.3
"""The minimum width of a bar, so that it is visible, in percent of the axis."""

GAPS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 100.0)
"""The distances below which bars are drawn as one, in percent of the axis."""

HOUR_SECONDS = 3600

_STEPS = (1, 2, 5, 10, 15, 30, *(60 * m for m in (1, 2, 5, 10, 15, 30)))
_LONG_STEPS = tuple(HOUR_SECONDS * h for h in (1, 2, 3, 6, 12, 24, 48, 168, 336, 672))


@dataclass(frozen=True, slots=True)
class Scale:
    """The time that is drawn, from the left edge to the right one."""

    start: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        return (self.end - self.start).total_seconds()

    def x(self, at: datetime) -> float:
        """Return the position of a moment in percent, at the edge if it is off the scale."""
        part = (at - self.start) / (self.end - self.start)
        return round(min(max(part, 0.0), 1.0) * 100, 2)


@dataclass(frozen=True, slots=True)
class Span:
    """Something that lasted from one moment to another."""

    start: datetime
    end: datetime

    what: str
    """The outcome or the state: a class in the style sheet."""

    holder: Holder

    weight: int = 0
    """How much it matters: of spans that are drawn as one, the weightiest is marked."""

    is_wait: bool = False

    is_running: bool = False
    """Whether it is not over yet. It is then drawn as one with its like only."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One span, or several that are too near to each other to be drawn apart."""

    x: float
    width: float
    spans: tuple[Span, ...]

    @property
    def weightiest(self) -> Span:
        """Of several that weigh the same, the last."""
        return max(reversed(self.spans), key=attrgetter("weight"))

    @property
    def what(self) -> str:
        """The most frequent outcome, which gives the bar its colour."""
        return Counter(span.what for span in self.spans).most_common(1)[0][0]


def bars(spans: Iterable[Span], scale: Scale, gap: float = 0.0) -> list[Bar]:
    """Return the bars of `spans`. Spans nearer than `gap` percent are one bar.

    A running span keeps its color: it is never joined with spans that have ended. Running
    spans come last, so that they are drawn on top.
    """
    groups: dict[str, list[Bar]] = {"": []}
    for span in sorted(spans, key=attrgetter("start")):
        if span.end < scale.start or span.start > scale.end:
            continue
        found = groups.setdefault(span.what if span.is_running else "", [])
        x = scale.x(span.start)
        width = max(round(scale.x(span.end) - x - GUTTER, 2), THINNEST)
        bar = Bar(round(min(x, 100 - width), 2), width, (span,))
        last = found[-1] if found else None
        if last and bar.x - round(last.x + last.width, 2) < gap - 0.005:
            width = round(max(last.x + last.width, bar.x + bar.width) - last.x, 2)
            found[-1] = Bar(last.x, width, last.spans + bar.spans)
        else:
            found.append(bar)
    return [bar for found in groups.values() for bar in found]


def fitted(rows: Sequence[Sequence[Span]], scale: Scale, most: int) -> list[list[Bar]]:
    """Return the bars of each row, at most `most` in all. Each row can have a few more: one for
    ended spans, and one for each kind of running span.

    The row with the most bars is simplified first, so that a busy row takes nothing from
    the others.
    """
    drawn = [bars(row, scale) for row in rows]
    coarser = [iter(GAPS) for _ in rows]
    while sum(map(len, drawn)) > most:
        fullest = max(range(len(rows)), key=lambda number: len(drawn[number]))
        gap = next(coarser[fullest], None)
        if gap is None:
            break
        drawn[fullest] = bars(rows[fullest], scale, gap)
    return drawn


def ticks(scale: Scale, zone: tzinfo, most: int = 7) -> list[datetime]:
    """Return the times that are round in a time zone, `most` of them at most."""
    seconds = next(
        (step for step in (*_STEPS, *_LONG_STEPS) if scale.seconds / step <= most - 1),
        math.ceil(scale.seconds / (most - 1)),
    )
    step, wall = timedelta(seconds=seconds), scale.start.astimezone(zone).replace(tzinfo=None)
    midnight = wall.replace(hour=0, minute=0, second=0, microsecond=0)
    first = wall + (midnight - wall) % step

    def moment(number: int) -> datetime:
        at = first + number * step
        if seconds < HOUR_SECONDS:
            return scale.start + (at - wall)
        return at.replace(tzinfo=zone).astimezone(UTC)  # the clock may change on the way

    moments = takewhile(lambda at: at <= scale.end, map(moment, count()))
    return [at for at in moments if at >= scale.start]


def columns(counts: Sequence[int]) -> str:
    """Return the counts as columns: path data in a box that is 1 wide for each, and 100 high."""
    top = max(counts, default=0)
    # A count of one in a thousand must be visible, too.
    tall = [max(round(100 * count / top, 1), 4.0) if count else 0 for count in counts]
    return "".join(f"M{x} 100v{-each:g}h.8V100z" for x, each in enumerate(tall) if each)
