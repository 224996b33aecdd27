"""Processes that wait for a lock.

- handover: from the start of a release to the return of acquire in a process that was waiting.
- crowd: 64 processes that all request one lock, without a break.
- growth: the effect of very many locks, and of very many waiters.
"""

from contextlib import ExitStack
from functools import partial

from tests.servers import Node

from ..contenders import (
    OURS,
    PEERS,
    POTTERY,
    PYTHON_REDIS_LOCK,
    REDIS_PY,
    RENEWED,
    ours_at,
)
from ..crew import Crew
from ..figure import Bench, Figure, Found, Line, Plot, Target, ratios
from ..places import aliases, fill_up
from ..rounds import cycles, interleaved
from ..turns import handovers, play

WAITERS = (2, 16, 64)

LIMITS = {PYTHON_REDIS_LOCK: (0.6, 1), RENEWED: (0.6, 0.7)}
"""The limits over a network and on the loopback, where a waiter's second request costs little."""

WHY = "the grant is the lock; their waiter has to ask again"

LATE = Target("at most", 1, "no waiter is forgotten")


def handover(bench: Bench) -> Figure:
    lines: list[Line] = []
    plotted: dict[str, list[float]] = {}
    numbers = bench.size(len(WAITERS), 2)
    with Crew(max(WAITERS[:numbers]) + 1, {"default": bench.url}) as crew:
        for waiters in WAITERS[:numbers]:
            one = partial(
                play,
                crew,
                waiters + 1,
                url=bench.url,
                seconds=bench.size(1.0, 0.5),
                name=f"handover:{waiters}",
                round_trip=bench.round_trip,
            )
            contenders = {label: partial(one, label) for label in (OURS, *PEERS)}
            stories = interleaved(contenders, bench.rounds(3), bench.random, warm=False)
            found, slowest = handovers(stories, 50), handovers(stories, 99)
            targets = {
                peer: Target("at most", bench.here(*limits), WHY)
                for peer, limits in LIMITS.items()
            }
            what = f"handover, {waiters} waiters"
            for peer in PEERS:
                late = LATE if (waiters, peer) == (16, PYTHON_REDIS_LOCK) else None
                lines += [
                    Line.ratio(f"{what}, median / {peer}", found, OURS, peer, targets.get(peer)),
                    Line.ratio(f"{what}, p99 / {peer}", slowest, OURS, peer, late),
                ]
            plotted |= {f"{label}, {waiters} waiters": found[label] for label in found}
    return Figure(
        "Handover between processes",
        tuple(lines),
        (Plot.of("handover", "Handover to a waiter, median", "ms", plotted, 1e3),),
    )


PROCESSES = 64
CROWD_WORK = 0.0005


def crowd(bench: Bench) -> Figure:
    url, seconds = bench.url, bench.size(4, 1.5)
    peers = [*PEERS, POTTERY]
    with Crew(PROCESSES, {"default": url}) as crew:
        one = partial(
            play, crew, PROCESSES, url=url, name="crowd", seconds=seconds, work=CROWD_WORK, pause=0
        )
        contenders = {label: partial(one, label) for label in (OURS, *peers)}
        stories = interleaved(contenders, bench.rounds(5), bench.random, warm=False)
    speed = {label: [each.per_second for each in some] for label, some in stories.items()}
    longest = {label: [each.longest_wait for each in some] for label, some in stories.items()}
    faster, shorter = "acquisitions per second / {}", "longest wait / {}"
    fast = {REDIS_PY: Target("at least", 1, "it lets the last holder win again, which is fast")}
    patient = {REDIS_PY: Target("at most", 0.2, "order of arrival, so nobody starves")}
    return Figure(
        f"{PROCESSES} processes, one lock",
        (
            *(
                Line.ratio(faster.format(label), speed, OURS, label, fast.get(label))
                for label in peers
            ),
            *(
                Line.ratio(shorter.format(label), longest, OURS, label, patient.get(label))
                for label in peers
            ),
        ),
        (
            Plot.of("crowd", "Acquisitions per second, 64 processes", "", speed),
            Plot.of("crowd-longest", "Longest wait for the lock, 64 processes", "s", longest),
        ),
    )


ACTIVE = (1, 100, 10_000, 100_000)
GROWING = (1, 4, 16, 64, 256)


def growth(bench: Bench) -> Figure:
    active = ACTIVE[: bench.size(4, 3)]
    waiters = GROWING[: bench.size(5, 3)]
    with ExitStack() as stack:
        urls = {f"with_{count}": stack.enter_context(Node()).url for count in active}
        known = {"default": bench.url} | urls
        stack.enter_context(aliases(**known))
        for count in active:
            fill_up(f"with_{count}", urls[f"with_{count}"], 0, count)
        alone = interleaved(
            {f"{count:,}": partial(cycles, ours_at(f"with_{count}", "cycle")) for count in active},
            bench.rounds(40),
            bench.random,
        )
        crew = stack.enter_context(Crew(max(waiters) + 1, known))
        one = partial(play, crew, url=bench.url, seconds=bench.size(1.5, 0.8))
        among, behind = (
            handovers(interleaved(each, bench.rounds(6), bench.random, warm=False), 50)
            for each in (
                {
                    f"{count:,}": partial(one, 2, OURS, name="growth", alias=f"with_{count}")
                    for count in active
                },
                {
                    f"{count:,}": partial(one, count + 1, OURS, name=f"growth:{count}")
                    for count in waiters
                },
            )
        )
    return Figure(
        "Growth",
        (
            *_growth("cycle time, {} locks / 1 lock", alone),
            *_growth("handover, {} locks / 1 lock", among),
            *_growth("handover, {} waiters / 1 waiter", behind),
        ),
        (
            Plot.of("growth-cycle", "Acquire and release, by active locks", "µs", alone, 1e6),
            Plot.of("growth-locks", "Handover, by active locks", "µs", among, 1e6),
            Plot.of("growth-waiters", "Handover, by waiters", "µs", behind, 1e6),
        ),
    )


def _growth(what: str, found: Found) -> list[Line]:
    one, *more = found
    return [Line.of(what.format(count), ratios(found[count], found[one])) for count in more]
