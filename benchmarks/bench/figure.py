"""What a figure is given, and what it answers with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from tests.servers import Node

from .lines import Line


@dataclass(frozen=True)
class Bench:
    """One run: the server that all contenders share, and how long it may take."""

    node: Node
    quick: bool = False
    """To see that it works: the results mean little."""

    given_rounds: int | None = None
    random: Random = field(default_factory=Random)

    def rounds(self, full: int) -> int:
        return self.given_rounds or (max(3, full // 10) if self.quick else full)

    def size(self, full: float, quick: float) -> float:
        return quick if self.quick else full

    def count(self, full: int, quick: int) -> int:
        return quick if self.quick else full


@dataclass(frozen=True)
class Plot:
    """Bars, from the top: a label, and how much."""

    name: str
    title: str
    unit: str
    bars: Mapping[str, float]


@dataclass(frozen=True)
class Figure:
    title: str
    lines: tuple[Line, ...]
    plots: tuple[Plot, ...] = ()
    notes: tuple[str, ...] = ()
    """What else was measured, in words."""
