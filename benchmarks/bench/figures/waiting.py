"""Processes that wait for a lock.

- (b) From the start of a release to the return of acquire in a process that was waiting.
- (c) 64 processes that all request one lock, without a break.
- (i) The effect of very many locks, and of very many waiters.
"""

from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from tests.servers import Node

from ..contenders import LIST, OURS, PEERS, PYTHON_REDIS_LOCK, client_of, ours_at
from ..crew import Crew
from ..figure import Bench, Figure, Found, Line, Plot, ratios
from ..places import aliases, fill_up, total
from ..rounds import cycles, interleaved
from ..turns import Story, percentiles, play

WAITERS = (2, 16, 64)

THEIRS = PYTHON_REDIS_LOCK

CROWDED = f"{LIST} with as many processes"
"""The lower bound: a process that has not run for long wakes up as slowly."""

SHORT = {OURS: OURS, THEIRS: THEIRS, LIST: "baseline (2 processes)", CROWDED: "lower bound"}


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
            what, middle = f"handover, {waiters} waiters", percentiles(stories, 50)
            worst = percentiles(stories, 99)
            lines += [
                Line.ratio(f"{what}, {of} / {other}", found, OURS, label, "at most", goal, CROWDED)
                for of, other, found, label, goal in (
                    ("median", LIST, middle, LIST, 1.2),
                    ("median", THEIRS, middle, THEIRS, 0.7),
                    ("p99", THEIRS, worst, THEIRS, 0.75),
                )
            ]
            for plotted, found in ((medians, middle), (slowest, worst)):
                plotted |= {f"{SHORT[label]}, {waiters} waiters": found[label] for label in found}
    return Figure(
        "Handover between processes",
        tuple(lines),
        (
            Plot.of("handover", "Handover to a waiter, median", "µs", medians, 1e6),
            Plot.of("handover-p99", "Handover to a waiter, 99th percentile", "µs", slowest, 1e6),
        ),
    )


PROCESSES = 64
CROWD_WORK = 0.0005

BY_CLIENTS = ("evalsha", "eval", "blpop", "wait")
"""The commands that this package sends. The scripts call all others."""


def crowd(bench: Bench) -> Figure:
    url, seconds = bench.node.url, bench.size(4, 1.5)
    with Crew(PROCESSES, {"default": url}) as crew:
        one = partial(
            play, crew, PROCESSES, url=url, name="crowd", seconds=seconds, work=CROWD_WORK, pause=0
        )

        def ours() -> Story:
            client_of(url).config_resetstat()
            story = one(OURS)
            warming_up = 2 * PROCESSES  # each process acquires and releases once before
            sent = total(client_of(url), "calls", *BY_CLIENTS) - warming_up
            return replace(story, sent=sent / len(story.turns))

        contenders = {OURS: ours} | {label: partial(one, label) for label in (LIST, *PEERS)}
        stories = interleaved(contenders, bench.rounds(5), bench.random, warm=False)
    speed, longest, fairness = (
        {label: [getattr(each, what) for each in stories[label]] for label in stories}
        for what in ("per_second", "longest_wait", "fairness")
    )
    sent = [each.sent for each in stories[OURS]]
    in_rounds = [each.longest_wait / each.full_round for each in stories[OURS]]
    faster, shorter = "acquisitions per second / {}", "longest wait / {}"
    return Figure(
        f"{PROCESSES} processes, one lock",
        (
            *(
                Line.ratio(faster.format(label), speed, OURS, label, "at least", 1, LIST)
                for label in PEERS
            ),
            Line.of("commands sent per acquisition", sent, "at most", 3.2),
            Line.of("Jain's index of fairness", fairness[OURS], "at least", 0.99),
            Line.of("longest wait / mean time of a full round", in_rounds, "at most", 2),
            *(
                Line.ratio(shorter.format(label), longest, OURS, label, "at most", 0.2)
                for label in PEERS
            ),
        ),
        (
            Plot.of("crowd", "Acquisitions per second, 64 processes", "", speed),
            Plot.of("crowd-longest", "Longest wait for the lock, 64 processes", "s", longest),
            Plot.of("crowd-fairness", "Jain's index of fairness, 64 processes", "", fairness),
        ),
    )


ACTIVE = (1, 100, 10_000, 100_000)
GROWING = (1, 4, 16, 64, 256)


def growth(bench: Bench) -> Figure:
    active = ACTIVE[: bench.size(4, 3)]
    waiters = GROWING[: bench.size(5, 3)]
    with ExitStack() as stack:
        urls = {f"with_{count}": stack.enter_context(Node()).url for count in active}
        known = {"default": bench.node.url} | urls
        stack.enter_context(aliases(**known))
        for count in active:
            fill_up(f"with_{count}", urls[f"with_{count}"], 0, count)
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
            *_growth("cycle time, {} locks / 1 lock", alone),
            *_growth("handover, {} locks / 1 lock", among),
            *_growth("handover, {} waiters / 1 waiter", behind, bare),
        ),
        (
            Plot.of("growth-cycle", "Acquire and release, by active locks", "µs", alone, 1e6),
            Plot.of("growth-locks", "Handover, by active locks", "µs", among, 1e6),
            Plot.of("growth-waiters", "Handover, by waiters", "µs", behind, 1e6),
        ),
    )


def _growth(what: str, found: Found, bare: Found | None = None) -> list[Line]:
    """The `bare` list is the lower bound: it wakes up a process that slept for long."""
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
