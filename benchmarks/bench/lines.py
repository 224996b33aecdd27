"""A line of the table: a goal, and what was measured, with its spread."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Sense = Literal["at most", "at least", "exactly"]


@dataclass(frozen=True)
class Line:
    """`result` is the median over the rounds; from `low` to `high` lies the middle half of
    them."""

    figure: str
    what: str
    goal: float
    sense: Sense
    result: float
    low: float
    high: float

    unit: str = ""
    """Of the goal and the result; a ratio has none."""

    floor: float | None = None
    """The median of what the least that could do it was measured as, in ours' place; None: of that
    nothing was measured."""

    @classmethod
    def of(
        cls,
        figure: str,
        what: str,
        values: Sequence[float],
        sense: Sense,
        goal: float,
        unit: str = "",
        floor: Sequence[float] | None = None,
    ) -> "Line":
        """The line of what each round found."""
        low, median, high = quartiles(values)
        least = statistics.median(floor) if floor else None
        return cls(figure, what, goal, sense, median, low, high, unit, least)

    @property
    def holds(self) -> bool:
        if self.sense == "exactly":
            return self.low == self.result == self.high == self.goal
        return self.result <= self.goal if self.sense == "at most" else self.result >= self.goal

    @property
    def within_noise(self) -> bool:
        """Whether another run might well end on the other side of the goal."""
        return self.low < self.high and self.low <= self.goal <= self.high

    @property
    def verdict(self) -> str:
        holds = "yes" if self.holds else "**no**"
        return f"{holds}, within the noise" if self.within_noise else holds

    def cells(self) -> tuple[str, ...]:
        spread = f"{number(self.low)} to {number(self.high)}" if self.low < self.high else ""
        goal = f"{self.sense} {number(self.goal)}{self.unit}"
        result = f"{number(self.result)}{self.unit}"
        floor = "" if self.floor is None else f"{number(self.floor)}{self.unit}"
        return f"({self.figure})", self.what, goal, floor, result, spread, self.verdict


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """By round: what was measured at the same time is compared."""
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high


def number(value: float) -> str:
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.1f}"
