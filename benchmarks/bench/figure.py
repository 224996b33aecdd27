"""The input of a figure, and its result: lines with targets, plots and notes."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal, TypeVar

Number = TypeVar("Number", int, float)
Sense = Literal["at most", "at least", "exactly"]
Found = Mapping[str, Sequence[float]]  # measurements of each contender, by round


@dataclass(frozen=True)
class Bench:
    """One run: the server that all contenders share, and the size of the run."""

    url: str  # of the server, for the contenders
    direct_url: str  # of the same server without the network, to measure there
    round_trip: float  # of the network, in seconds; 0 for the loopback
    quick: bool = False  # for a test of the program; the results mean little
    given_rounds: int | None = None
    random: Random = field(default_factory=Random)

    def rounds(self, full: int) -> int:
        return self.given_rounds or (max(1, full // 10) if self.quick else full)

    def size(self, full: Number, quick: Number) -> Number:
        return quick if self.quick else full

    def goal(self, network: float, loopback: float) -> float:
        """Return the goal at this distance from the server."""
        return network if self.round_trip else loopback


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

    @classmethod
    def of(
        cls, what: str, values: Sequence[float], sense: Sense, goal: float, unit: str = ""
    ) -> "Line":
        low, median, high = quantiles(values)
        return cls(what, goal, sense, median, low, high, unit)

    @classmethod
    def ratio(
        cls, what: str, found: Found, ours: str, theirs: str, sense: Sense, goal: float
    ) -> "Line":
        """Compare two contenders."""
        return cls.of(what, ratios(found[ours], found[theirs]), sense, goal)

    @property
    def holds(self) -> bool:
        if self.sense == "exactly":
            return self.low == self.result == self.high == self.goal
        return self.result <= self.goal if self.sense == "at most" else self.result >= self.goal

    @property
    def cell(self) -> str:
        """The result, in bold if it misses the goal, and the middle half of the rounds."""
        result = f"{number(self.result)}{self.unit}"
        if not self.holds:
            result = f"**{result}**"
        if self.low == self.high:
            return result
        return f"{result} ({number(self.low)} to {number(self.high)})"


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
