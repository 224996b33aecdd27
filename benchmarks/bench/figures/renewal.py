"""(d) Ten thousand locks that one process holds, and what it takes to keep them."""

import threading
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from tests.round_trips import RoundTrips

from ..contenders import LEASE, OURS, PYTHON_REDIS_LOCK, contender
from ..crew import Crew
from ..figure import Bench, Figure, Line, Plot

PERIOD = {OURS: LEASE / 3, PYTHON_REDIS_LOCK: LEASE * 2 / 3}
"""Seconds from one renewal of a lock to the next."""

THEIRS = PYTHON_REDIS_LOCK


@dataclass(frozen=True)
class Kept:
    """What one process took to keep `locks` of them for a period."""

    locks: int
    threads: int  # beside the one that acquired them
    cpu: float  # of a core
    round_trips: int


def renewal(bench: Bench) -> Figure:
    many, theirs = bench.count(10_000, 1000), 500
    ours: list[Kept] = []
    with Crew(1, {"default": bench.node.url}) as crew:
        for _ in range(2 if bench.quick else 3):
            ours += crew.order(1, keep, OURS, bench.node.url, many)
        [other] = crew.order(1, keep, THEIRS, bench.node.url, theirs)
    threads = [float(each.threads) for each in ours]
    cpu = [each.cpu * 100 for each in ours]
    trips = [float(each.round_trips) for each in ours]
    each = {OURS: sorted(ours, key=attrgetter("cpu"))[len(ours) // 2], THEIRS: other}
    return Figure(
        f"{many:,} locks held by one process",
        (
            Line.of("threads that renew them", threads, "exactly", 1),
            Line.of("processor time, of a core", cpu, "at most", 1, " %"),
            Line.of("round trips in a period of renewal", trips, "at most", 100),
        ),
        (
            Plot(
                "renewal",
                f"Processor time to keep 10,000 locks, of a core ({THEIRS}: from {theirs})",
                "%",
                {name: kept.cpu * 100 * 10_000 / kept.locks for name, kept in each.items()},
            ),
        ),
        tuple(
            f"{name}, {kept.locks:,} locks: {kept.threads:,} threads, {kept.cpu:.2%} of a core, "
            f"{kept.round_trips:,} round trips in a period of {PERIOD[name]:.0f} s."
            for name, kept in each.items()
        ),
    )


def keep(label: str, url: str, count: int) -> Kept:
    """Runs in a process of its own, that does nothing else meanwhile."""
    held = [contender(label, url, f"kept:{number}") for number in range(count)]
    for lock in held:
        lock.acquire()
    try:
        return _watch(label, held)
    finally:
        for lock in held:
            with nullcontext() if label == OURS else suppress(RuntimeError):  # it was lost
                lock.release()


def _watch(label: str, held: list[Any]) -> Kept:
    time.sleep(PERIOD[label] / 2)  # so that what comes once in a period lies well inside of it
    threads = threading.active_count() - 1
    with RoundTrips() as made:
        began, cpu = time.monotonic(), time.process_time()
        time.sleep(PERIOD[label])
        seconds, used = time.monotonic() - began, time.process_time() - cpu
    return Kept(len(held), threads, used / seconds, made.count)
