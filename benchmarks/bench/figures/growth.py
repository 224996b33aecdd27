"""(i) Whether it gets slower with very many locks, or with very many waiters."""

from contextlib import ExitStack
from functools import partial

from django_redislock import locks
from tests.filling import fill
from tests.servers import Node

from ..contenders import LIST, OURS, client_of, ours_at
from ..crew import Crew
from ..figure import Bench, Figure, Found, Line, Plot, ratios
from ..places import KEYS, aliases
from ..rounds import cycles, interleaved
from ..turns import percentiles, play

ACTIVE = (1, 100, 10_000, 100_000)
WAITERS = (1, 4, 16, 64, 256)


def growth(bench: Bench) -> Figure:
    active = ACTIVE[: bench.count(4, 3)]
    waiters = WAITERS[: bench.count(5, 3)]
    with ExitStack() as stack:
        urls = {f"with_{count}": stack.enter_context(Node()).url for count in active}
        known = {"default": bench.node.url} | urls
        stack.enter_context(aliases(**known))
        for count in active:
            _fill(f"with_{count}", urls[f"with_{count}"], count)
        alone = interleaved(
            {f"{count:,}": partial(cycles, ours_at(f"with_{count}", "cycle")) for count in active},
            bench.rounds(40),
            bench.random,
        )
        crew = stack.enter_context(Crew(max(waiters) + 1, known))
        one = partial(play, crew, url=bench.node.url, seconds=bench.size(1.5, 0.8))
        among, behind, bare = (
            percentiles(interleaved(each, bench.rounds(6), bench.random, warm=False), 50)
            for each in (
                {
                    f"{count:,}": partial(one, 2, OURS, name="growth", alias=f"with_{count}")
                    for count in active
                },
                *(
                    {
                        f"{count:,}": partial(one, count + 1, label, name=f"growth:{count}")
                        for count in waiters
                    }
                    for label in (OURS, LIST)
                ),
            )
        )
    return Figure(
        "Growth",
        (
            *_lines("a cycle, {} locks / 1", alone),
            *_lines("a hand-over, {} locks / 1", among),
            *_lines("a hand-over, {} waiters / 1", behind, bare),
        ),
        (
            Plot.of("growth-cycle", "A cycle, by active locks", "µs", alone, 1e6),
            Plot.of("growth-locks", "A hand-over, by active locks", "µs", among, 1e6),
            Plot.of("growth-waiters", "A hand-over, by waiters", "µs", behind, 1e6),
        ),
    )


def _fill(alias: str, url: str, count: int) -> None:
    locks.using(alias).lock("model", timeout=3600, auto_renewal=False).acquire()
    names = [f"lock:{number}" for number in range(count - 1)]
    fill(client_of(url), KEYS, "model", names)


def _lines(what: str, found: Found, bare: Found | None = None) -> list[Line]:
    """The `bare` list is the floor: a process wakes up that slept for long."""
    one, *more = found
    floors = {count: ratios(bare[count], bare[one]) if bare else None for count in more}
    return [
        Line.of(
            what.format(count),
            ratios(found[count], found[one]),
            "at most",
            1.2,
            floor=floors[count],
        )
        for count in more
    ]
