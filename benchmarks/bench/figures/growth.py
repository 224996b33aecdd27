"""(i) Whether it gets slower where there are very many locks, or waiters."""

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from django_redislock import locks
from tests.filling import fill
from tests.servers import Node

from ..contenders import LIST, OURS, client_of
from ..crew import Crew
from ..figure import Bench, Figure, Plot
from ..lines import Line, ratios
from ..places import KEYS, aliases
from ..rounds import interleaved
from ..turns import Story, percentile, play
from .handover import PAUSE, WORK

ACTIVE = (1, 100, 10_000, 100_000)
WAITERS = (1, 4, 16, 64, 256)
CYCLES = 100


def growth(bench: Bench) -> Figure:
    active = ACTIVE[: bench.count(4, 3)]
    waiters = WAITERS[: bench.count(5, 3)]
    with ExitStack() as stack:
        nodes = {count: stack.enter_context(Node()) for count in active}
        urls = {f"with_{count}": node.url for count, node in nodes.items()}
        known = {"default": bench.node.url} | urls
        stack.enter_context(aliases(**known))
        for count, node in nodes.items():
            _fill(f"with_{count}", node.url, count)
        cycles = interleaved(
            {f"{count:,}": partial(_cycles, f"with_{count}") for count in active},
            bench.rounds(40),
            bench.random,
        )
        crew = stack.enter_context(Crew(max(waiters) + 1, known))
        among = _handovers(
            bench, {f"{count:,}": _among(bench, crew, f"with_{count}") for count in active}
        )
        behind = _handovers(
            bench, {f"{count:,}": _behind(bench, crew, OURS, count) for count in waiters}
        )
        bare = _handovers(
            bench, {f"{count:,}": _behind(bench, crew, LIST, count) for count in waiters}
        )
    return Figure(
        "Growth",
        (
            *_lines("a cycle, {} locks / 1", cycles),
            *_lines("a hand-over, {} locks / 1", among),
            *_lines("a hand-over, {} waiters / 1", behind, bare),
        ),
        (
            Plot("growth-cycle", "A cycle, by active locks", "µs", _microseconds(cycles)),
            Plot("growth-locks", "A hand-over, by active locks", "µs", _microseconds(among)),
            Plot("growth-waiters", "A hand-over, by waiters", "µs", _microseconds(behind)),
        ),
    )


def _fill(alias: str, url: str, count: int) -> None:
    locks.using(alias).lock("model", timeout=3600, auto_renewal=False).acquire()
    names = [f"lock:{number}" for number in range(count - 1)]
    fill(client_of(url), KEYS, "model", names)


def _cycles(alias: str) -> float:
    lock = locks.using(alias).lock("cycle")
    begun = time.perf_counter()
    for _ in range(CYCLES):
        lock.acquire()
        lock.release()
    return (time.perf_counter() - begun) / CYCLES


def _among(bench: Bench, crew: Crew, alias: str) -> Callable[[], Story]:
    return lambda: _play(bench, crew, 2, OURS, "growth", alias)


def _behind(bench: Bench, crew: Crew, label: str, waiters: int) -> Callable[[], Story]:
    # What is in a list at the end of a round stays there.
    return lambda: _play(
        bench, crew, waiters + 1, label, f"growth:{waiters}:{bench.random.random()}"
    )


def _play(
    bench: Bench, crew: Crew, processes: int, label: str, name: str, alias: str = ""
) -> Story:
    return play(
        crew,
        processes,
        label,
        bench.node.url,
        name,
        seconds=bench.size(1.5, 0.8),
        work=WORK,
        pause=PAUSE,
        alias=alias,
    )


def _handovers(bench: Bench, contenders: dict[str, Callable[[], Story]]) -> dict[str, list[float]]:
    stories = interleaved(contenders, bench.rounds(6), bench.random, warm=False)
    return {
        count: [percentile(story.handovers(), 50) for story in told]
        for count, told in stories.items()
    }


def _lines(
    what: str, found: dict[str, list[float]], bare: dict[str, list[float]] | None = None
) -> list[Line]:
    """What `bare` tells of the bare list is the floor: a process wakes up that slept for long."""
    one, *more = found
    return [
        Line.of(
            "i",
            what.format(count),
            ratios(found[count], found[one]),
            "at most",
            1.2,
            floor=ratios(bare[count], bare[one]) if bare else None,
        )
        for count in more
    ]


def _microseconds(found: dict[str, list[float]]) -> dict[str, float]:
    return {count: statistics.median(values) * 1e6 for count, values in found.items()}
