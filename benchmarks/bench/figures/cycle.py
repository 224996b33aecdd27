"""(a) One cycle of acquire and release that meets nobody else."""

import asyncio
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import redis.asyncio

from django_redislock import locks
from tests.round_trips import RoundTrips

from ..contenders import (
    BARE,
    LEASE,
    OURS,
    PEERS,
    PINGS,
    REDIS_PY,
    SAME,
    SENT,
    client_of,
    contender,
)
from ..figure import Bench, Figure, Plot
from ..lines import Line, number, ratios
from ..rounds import interleaved

CYCLES = 100
"""At a time."""

ANEW = "made anew"


def cycle(bench: Bench) -> Figure:
    url, rounds = bench.node.url, bench.rounds(60)
    reused = {
        label: partial(_cycles, contender(label, url, "cycle"))
        for label in (OURS, *PEERS, BARE, SAME, SENT, PINGS)
    }
    anew = {
        f"{OURS}, {ANEW}": partial(_blocks, lambda: locks.lock("cycle")),
        f"{REDIS_PY}, {ANEW}": partial(
            _blocks, lambda: client_of(url).lock(f"{REDIS_PY}:cycle", timeout=LEASE)
        ),
    }
    found = interleaved(reused | anew, rounds, bench.random)
    with asyncio.Runner() as runner:
        of_async = _asynchronous(runner, url)
        afound = interleaved(of_async, rounds, bench.random)
    lines = (
        _line("a cycle / redis-py's", found, REDIS_PY, SENT, 0.95),
        _line("a cycle / the bare two", found, BARE, SENT, 1.1),
        Line.of("a", "round trips of a cycle", [_round_trips(url)], "exactly", 2),
        _line("an async cycle / redis-py's", afound, REDIS_PY, PINGS, 0.95),
    )
    with_block = statistics.median(ratios(*(found[label] for label in anew)))
    same = statistics.median(ratios(found[SAME], found[BARE]))
    return Figure(
        "One cycle, uncontended",
        lines,
        (
            Plot("cycle", "A cycle of acquire and release", "µs", _microseconds(found)),
            Plot("cycle-async", "The same with asyncio", "µs", _microseconds(afound)),
        ),
        (
            f"With a lock object {ANEW} for each `with`: {number(with_block)} of redis-py's.",
            f"{SAME.capitalize()}, through redis-py's client / the bare two: {number(same)}.",
        ),
    )


def _line(what: str, found: dict[str, list[float]], other: str, least: str, goal: float) -> Line:
    ours, floor = (ratios(found[label], found[other]) for label in (OURS, least))
    return Line.of("a", what, ours, "at most", goal, floor=floor)


def _cycles(lock: Any) -> float:
    begun = time.perf_counter()
    for _ in range(CYCLES):
        lock.acquire()
        lock.release()
    return (time.perf_counter() - begun) / CYCLES


def _blocks(make: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    for _ in range(CYCLES):
        with make():
            pass
    return (time.perf_counter() - begun) / CYCLES


def _asynchronous(runner: asyncio.Runner, url: str) -> dict[str, Callable[[], float]]:
    ours = locks.lock("async")
    client = redis.asyncio.Redis.from_url(url)
    theirs = client.lock(f"{REDIS_PY}:async", timeout=LEASE)

    async def cycles(acquire: Any, release: Any) -> float:
        begun = time.perf_counter()
        for _ in range(CYCLES):
            await acquire()
            await release()
        return (time.perf_counter() - begun) / CYCLES

    async def pings() -> float:
        return await cycles(client.ping, client.ping)

    return {
        OURS: lambda: runner.run(cycles(ours.aacquire, ours.arelease)),
        REDIS_PY: lambda: runner.run(cycles(theirs.acquire, theirs.release)),
        PINGS: lambda: runner.run(pings()),
    }


def _round_trips(url: str) -> float:
    lock = contender(OURS, url, "cycle")
    with RoundTrips() as made:
        _cycles(lock)
    return made.count / CYCLES


def _microseconds(found: dict[str, list[float]]) -> dict[str, float]:
    return {label: statistics.median(times) * 1e6 for label, times in found.items()}
