"""(b) From the start of a release to the return of acquire in a process that was waiting."""

import statistics
from functools import partial

from ..contenders import LIST, OURS, PYTHON_REDIS_LOCK
from ..crew import Crew
from ..figure import Bench, Figure, Plot
from ..lines import Line, ratios
from ..rounds import interleaved
from ..turns import Story, percentile, play

WAITERS = (2, 16, 64)

WORK, PAUSE = 0.003, 0.001
"""Seconds that the lock is held, and that its last holder stays away: so it waits again when the
lock is released the next time, and does not snatch it from those who waited."""

THEIRS = PYTHON_REDIS_LOCK

CROWDED = f"{LIST} of as many processes"
"""The floor: it takes as long to wake up a process that has not run for long."""


def handover(bench: Bench) -> Figure:
    lines: list[Line] = []
    medians: dict[str, float] = {}
    slowest: dict[str, float] = {}
    with Crew(max(WAITERS) + 1, {"default": bench.node.url}) as crew:
        for waiters in WAITERS:
            stories = _stories(bench, crew, waiters)
            middle = {label: _each(stories[label], 50) for label in stories}
            worst = {label: _each(stories[label], 99) for label in stories}
            lines += _lines(waiters, middle, worst)
            medians |= _microseconds(waiters, middle)
            slowest |= _microseconds(waiters, worst)
    return Figure(
        "Hand-over between processes",
        tuple(lines),
        (
            Plot("handover", "A hand-over, median", "µs", medians),
            Plot("handover-p99", "A hand-over, 99th percentile", "µs", slowest),
        ),
    )


def _stories(bench: Bench, crew: Crew, waiters: int) -> dict[str, list[Story]]:
    one = partial(
        play, crew, url=bench.node.url, seconds=bench.size(1.5, 0.8), work=WORK, pause=PAUSE
    )
    name = f"handover:{waiters}"
    return interleaved(
        {
            OURS: lambda: one(waiters + 1, OURS, name=name),
            THEIRS: lambda: one(waiters + 1, THEIRS, name=name),
            # What is in the list at the end of a round stays there.
            LIST: lambda: one(2, LIST, name=f"{name}:{bench.random.random()}"),
            CROWDED: lambda: one(waiters + 1, LIST, name=f"{name}:{bench.random.random()}"),
        },
        bench.rounds(8),
        bench.random,
        warm=False,
    )


def _each(stories: list[Story], percent: int) -> list[float]:
    return [percentile(story.handovers(), percent) for story in stories]


def _lines(
    waiters: int, middle: dict[str, list[float]], worst: dict[str, list[float]]
) -> list[Line]:
    what = f"hand-over, {waiters} waiters"
    return [
        _line(f"{what}, median / {LIST}", middle, LIST, 1.2),
        _line(f"{what}, median / {THEIRS}'s", middle, THEIRS, 0.7),
        _line(f"{what}, p99 / {THEIRS}'s", worst, THEIRS, 0.75),
    ]


def _line(what: str, found: dict[str, list[float]], other: str, goal: float) -> Line:
    ours, floor = (ratios(found[label], found[other]) for label in (OURS, CROWDED))
    return Line.of("b", what, ours, "at most", goal, floor=floor)


def _microseconds(waiters: int, found: dict[str, list[float]]) -> dict[str, float]:
    short = {OURS: OURS, THEIRS: THEIRS, LIST: "bare, two processes", CROWDED: "bare, as many"}
    return {
        f"{short[label]}, {waiters} waiters": statistics.median(values) * 1e6
        for label, values in found.items()
    }
