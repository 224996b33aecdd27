"""(b) From the start of a release to the return of acquire in a process that was waiting."""

from functools import partial

from ..contenders import LIST, OURS, PYTHON_REDIS_LOCK
from ..crew import Crew
from ..figure import Bench, Figure, Line, Plot
from ..rounds import interleaved
from ..turns import percentiles, play

WAITERS = (2, 16, 64)

THEIRS = PYTHON_REDIS_LOCK

CROWDED = f"{LIST} of as many processes"
"""The floor: a process that has not run for long takes as long to wake up."""

SHORT = {OURS: OURS, THEIRS: THEIRS, LIST: "bare, two processes", CROWDED: "bare, as many"}


def handover(bench: Bench) -> Figure:
    lines: list[Line] = []
    medians: dict[str, list[float]] = {}
    slowest: dict[str, list[float]] = {}
    with Crew(max(WAITERS) + 1, {"default": bench.node.url}) as crew:
        for waiters in WAITERS:
            one = partial(
                play,
                crew,
                url=bench.node.url,
                seconds=bench.size(1.5, 0.8),
                name=f"handover:{waiters}",
            )
            contenders = {
                OURS: partial(one, waiters + 1, OURS),
                THEIRS: partial(one, waiters + 1, THEIRS),
                LIST: partial(one, 2, LIST),
                CROWDED: partial(one, waiters + 1, LIST),
            }
            stories = interleaved(contenders, bench.rounds(8), bench.random, warm=False)
            what, middle = f"hand-over, {waiters} waiters", percentiles(stories, 50)
            worst = percentiles(stories, 99)
            lines += [
                Line.ratio(f"{what}, {of} / {other}", found, OURS, label, "at most", goal, CROWDED)
                for of, other, found, label, goal in (
                    ("median", LIST, middle, LIST, 1.2),
                    ("median", f"{THEIRS}'s", middle, THEIRS, 0.7),
                    ("p99", f"{THEIRS}'s", worst, THEIRS, 0.75),
                )
            ]
            for plotted, found in ((medians, middle), (slowest, worst)):
                plotted |= {f"{SHORT[label]}, {waiters} waiters": found[label] for label in found}
    return Figure(
        "Hand-over between processes",
        tuple(lines),
        (
            Plot.of("handover", "A hand-over, median", "µs", medians, 1e6),
            Plot.of("handover-p99", "A hand-over, 99th percentile", "µs", slowest, 1e6),
        ),
    )
