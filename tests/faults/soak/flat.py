"""Whether what was measured again and again stays as it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median


@dataclass(frozen=True)
class Allowed:
    """How much may be more at the end: so much, or that part of what there is."""

    amount: float
    part: float = 0.0

    def of(self, level: float) -> float:
        return max(self.amount, self.part * level)


@dataclass(frozen=True)
class Series:
    """One measure of one process, round after round. The first third is its way to what it needs,
    and counts for nothing; of the rest counts the slope of Theil and Sen, which a few outliers
    don't change, times its length."""

    who: str
    what: str
    values: Sequence[float]
    allowed: Allowed

    @property
    def middle(self) -> float:
        return median(self._third(1))

    @property
    def last(self) -> float:
        return median(self._third(2))

    @property
    def growth(self) -> float:
        """From the end of the first third to the end."""
        rest = self.values[len(self.values) // 3 :]
        pairs = combinations(enumerate(rest), 2)
        slope = median([(later - value) / (at - since) for (since, value), (at, later) in pairs])
        return slope * (len(rest) - 1)

    @property
    def limit(self) -> float:
        return self.allowed.of(self.middle)

    @property
    def is_flat(self) -> bool:
        return self.growth <= self.limit

    def _third(self, number: int) -> Sequence[float]:
        size = len(self.values)
        return self.values[size * number // 3 : size * (number + 1) // 3]
