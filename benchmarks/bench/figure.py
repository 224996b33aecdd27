"""The input of a figure, and its result: lines with targets, plots and notes."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal, TypeVar

from tests.servers import Node

Number = TypeVar("Number", int, float)
Sense = Literal["at most", "at least", "exactly"]
Found = Mapping[str, Sequence[float]]  # measurements of each contender, by round


@dataclass(frozen=True)
class Bench:
    """One run: the server that all contenders share, and the size of the run."""

    node: Node
    quick: bool = False  # for a test of the program; the results mean little
    given_rounds: int | None = None
    random: Random = field(default_factory=Random)

    def rounds(self, full: int) -> int:
        return self.given_rounds or (max(3, full // 10) if self.quick else full)

    def size(self, full: Number, quick: Number) -> Number:
        return quick if self.quick else full


@dataclass(frozen=True)
class Line:
    """A goal, and the result: the median of the rounds, and the middle half of them."""

    what: str
    goal: float
    sense: Sense
    result: float
    low: float
    high: float
    unit: str = ""  # of the goal and the result; empty for a ratio
    floor: float | None = None  # the median of the lower bound, if it was measured

    @classmethod
    def of(
        cls,
        what: str,
        values: Sequence[float],
        sense: Sense,
        goal: float,
        unit: str = "",
        floor: Sequence[float] | None = None,
    ) -> "Line":
        low, median, high = quantiles(values)
        least = statistics.median(floor) if floor else None
        return cls(what, goal, sense, median, low, high, unit, least)

    @classmethod
    def ratio(
        cls,
        what: str,
        found: Found,
        ours: str,
        theirs: str,
        sense: Sense,
        goal: float,
        floor: str | None = None,
    ) -> "Line":
        """Compare two contenders, and optionally a third as the floor."""
        least = ratios(found[floor], found[theirs]) if floor else None
        return cls.of(what, ratios(found[ours], found[theirs]), sense, goal, floor=least)

    @property
    def holds(self) -> bool:
        if self.sense == "exactly":
            return self.low == self.result == self.high == self.goal
        return self.result <= self.goal if self.sense == "at most" else self.result >= self.goal

    @property
    def within_noise(self) -> bool:
        """Whether another run may well have a result on the other side of the goal."""
        return self.low < self.high and self.low <= self.goal <= self.high

    def cells(self) -> tuple[str, ...]:
        spread = f"{number(self.low)} to {number(self.high)}" if self.low < self.high else ""
        goal = f"{self.sense} {number(self.goal)}{self.unit}"
        result = f"{number(self.result)}{self.unit}"
        floor = "" if self.floor is None else f"{number(self.floor)}{self.unit}"
        verdict = "yes" if self.holds else "**no**"
        verdict += ", inconclusive" if self.within_noise else ""
        return self.what, goal, floor, result, spread, verdict


@dataclass(frozen=True)
class Plot:
    """A bar chart: labels and values, from the top."""

    name: str
    title: str
    unit: str
    bars: Mapping[str, float]

    @classmethod
    def of(cls, name: str, title: str, unit: str, found: Found, times: float = 1) -> "Plot":
        """Return a plot of the medians, multiplied by `times`."""
        return cls(name, title, unit, {label: times * middle(found, label) for label in found})


@dataclass(frozen=True)
class Figure:
    title: str
    lines: tuple[Line, ...]
    plots: tuple[Plot, ...] = ()
    notes: tuple[str, ...] = ()  # other measurements, as sentences


def middle(found: Found, label: str) -> float:
    return statistics.median(found[label])


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return the ratio of each round, which compares measurements of the same time."""
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def quantiles(values: Sequence[float], parts: int = 4) -> list[float]:
    if len(values) < 2:
        return [values[0]] * (parts - 1)
    return statistics.quantiles(values, n=parts, method="inclusive")


def number(value: float) -> str:
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.1f}"
