"""What an exhibit is, and what was found of it."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .actors import Home
from .scene import Part, Scene


@dataclass(frozen=True)
class Outcome:
    """Of one trial."""

    failed: bool
    figures: Mapping[str, float] = field(default_factory=dict)
    """What was measured, by the names that the exhibit has for it."""


Happens: TypeAlias = Callable[[Scene, Part], Outcome]
Plays: TypeAlias = Callable[[Any, Part, int], list[Outcome]]


def each_apart(happens: Happens, *, at_once: int) -> Plays:
    """Trials that have nothing in common, some at the same time."""

    def one(home: Home, lock: Part) -> Outcome:
        with Scene(home) as scene:
            return happens(scene, lock)

    def play(home: Home, lock: Part, trials: int) -> list[Outcome]:
        pool = ThreadPoolExecutor(min(at_once, trials))
        try:
            return list(pool.map(lambda _: one(home, lock), range(trials)))
        finally:
            pool.shutdown(cancel_futures=True)

    return play


def typical(values: Sequence[float]) -> float:
    return statistics.median(values)


def worst(values: Sequence[float]) -> float:
    return max(values)


def total(values: Sequence[float]) -> float:
    return sum(values)


@dataclass(frozen=True)
class Exhibit:
    name: str
    title: str
    algorithm: str
    """What is taught, in a sentence."""

    failure: str
    """What is counted: so often in so many trials..."""

    taught: Part
    ours: Part

    plays: Plays
    """So many trials of one of them, in what `setting` gives."""

    figures: Mapping[str, Callable[[Sequence[float]], float]] = field(default_factory=dict)
    """What else is measured, and what is told of all trials."""

    setting: Callable[[Home], AbstractContextManager[Any]] = nullcontext
    """What both need, beside the server: what `plays` is given."""


@dataclass(frozen=True)
class Side:
    failed: int
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Found:
    exhibit: Exhibit
    number: int
    trials: int
    taught: Side
    ours: Side
    seconds: float

    @property
    def is_as_told(self) -> bool:
        return self.taught.failed == self.trials and not self.ours.failed


def find(home: Home, number: int, exhibit: Exhibit, trials: int) -> Found:
    began = time.monotonic()
    with exhibit.setting(home) as setting:
        taught, ours = (
            _side(exhibit, exhibit.plays(setting, lock, trials))
            for lock in (exhibit.taught, exhibit.ours)
        )
    return Found(exhibit, number, trials, taught, ours, time.monotonic() - began)


def _side(exhibit: Exhibit, outcomes: Sequence[Outcome]) -> Side:
    return Side(
        sum(outcome.failed for outcome in outcomes),
        {
            label: tell([outcome.figures[label] for outcome in outcomes])
            for label, tell in exhibit.figures.items()
        },
    )
