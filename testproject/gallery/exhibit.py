"""Exhibits and their results."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .actors import ActorServer
from .trial import ActorFactory, Trial


@dataclass(frozen=True)
class Outcome:
    """The outcome of one trial."""

    failed: bool
    figures: Mapping[str, float] = field(default_factory=dict)
    """Measurements, by label."""


RunTrial: TypeAlias = Callable[[Trial, ActorFactory], Outcome]
RunTrials: TypeAlias = Callable[[Any, ActorFactory, int], list[Outcome]]


def independent_trials(run_trial: RunTrial, *, at_once: int) -> RunTrials:
    """Return a function that runs independent trials, up to `at_once` at the same time."""

    def one(actor_server: ActorServer, lock: ActorFactory) -> Outcome:
        with Trial(actor_server) as trial:
            return run_trial(trial, lock)

    def run_all(actor_server: ActorServer, lock: ActorFactory, trials: int) -> list[Outcome]:
        pool = ThreadPoolExecutor(min(at_once, trials))
        try:
            return list(pool.map(lambda _: one(actor_server, lock), range(trials)))
        finally:
            pool.shutdown(cancel_futures=True)

    return run_all


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
    """The common algorithm, in one sentence."""

    failure: str
    """The failure that is counted."""

    taught: ActorFactory
    ours: ActorFactory

    run_trials: RunTrials
    """Runs the given number of trials of one algorithm, in the environment from `setting`."""

    figures: Mapping[str, Callable[[Sequence[float]], float]] = field(default_factory=dict)
    """Other measurements, by label, each with the function that combines all trials."""

    setting: Callable[[ActorServer], AbstractContextManager[Any]] = nullcontext
    """Makes the environment that both algorithms need in addition to the server."""


@dataclass(frozen=True)
class Side:
    failed: int
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Result:
    exhibit: Exhibit
    number: int
    trials: int
    taught: Side
    ours: Side
    seconds: float

    @property
    def is_as_expected(self) -> bool:
        return self.taught.failed == self.trials and not self.ours.failed


def run_exhibit(actor_server: ActorServer, number: int, exhibit: Exhibit, trials: int) -> Result:
    began = time.monotonic()
    with exhibit.setting(actor_server) as setting:
        taught, ours = (
            _side(exhibit, exhibit.run_trials(setting, lock, trials))
            for lock in (exhibit.taught, exhibit.ours)
        )
    return Result(exhibit, number, trials, taught, ours, time.monotonic() - began)


def _side(exhibit: Exhibit, outcomes: Sequence[Outcome]) -> Side:
    return Side(
        sum(outcome.failed for outcome in outcomes),
        {
            label: combine([outcome.figures[label] for outcome in outcomes])
            for label, combine in exhibit.figures.items()
        },
    )
