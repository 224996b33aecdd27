"""The input of a figure, and its result: lines, some with a target, plots and notes."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal, TypeVar

Number = TypeVar("Number", int, float)
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

    def here(self, network: float, loopback: float) -> float:
        """Return the limit of a target at this distance from the server."""
        return network if self.round_trip else loopback


@dataclass(frozen=True)
class Target:
    """A limit that we set for a result, and the reason for it."""

    sense: Literal["at most", "at least"]
    limit: float
    why: str

    def is_met(self, result: float) -> bool:
        return result <= self.limit if self.sense == "at most" else result >= self.limit


@dataclass(frozen=True)
class Line:
    """A result: the median of the rounds, and the middle half of them."""

    what: str
    result: float
    low: float
    high: float
    target: Target | None = None
    unit: str = ""  # of the target and the result; empty for a ratio

    @classmethod
    def of(
        cls, what: str, values: Sequence[float], target: Target | None = None, unit: str = ""
    ) -> "Line":
        low, median, high = quantiles(values)
        return cls(what, median, low, high, target, unit)

    @classmethod
    def ratio(
        cls, what: str, found: Found, ours: str, theirs: str, target: Target | None = None
    ) -> "Line":
        """Compare two contenders."""
        return cls.of(what, ratios(found[ours], found[theirs]), target)

    @property
    def holds(self) -> bool:
        return self.target is None or self.target.is_met(self.result)

    @property
    def cell(self) -> str:
        """The result, in bold if it misses its target, and the middle half of the rounds."""
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
