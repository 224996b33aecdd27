"""(a) One cycle of acquire and release that meets nobody else."""

import asyncio
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
from ..figure import Bench, Figure, Line, Plot, number, quartiles, ratios
from ..rounds import cycles, interleaved

CYCLES = 100  # at a time

ANEW = "made anew"


def cycle(bench: Bench) -> Figure:
    url, rounds = bench.node.url, bench.rounds(60)
    reused = {
        label: partial(cycles, contender(label, url, "cycle"))
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
    most = "at most"
    lines = (
        Line.ratio("a cycle / redis-py's", found, OURS, REDIS_PY, most, 0.95, SENT),
        Line.ratio("a cycle / the bare two", found, OURS, BARE, most, 1.1, SENT),
        Line.of("round trips of a cycle", [_round_trips(url)], "exactly", 2),
        Line.ratio("an async cycle / redis-py's", afound, OURS, REDIS_PY, most, 0.95, PINGS),
    )
    with_block = quartiles(ratios(*(found[label] for label in anew)))[1]
    same = quartiles(ratios(found[SAME], found[BARE]))[1]
    return Figure(
        "One cycle, uncontended",
        lines,
        (
            Plot.of("cycle", "A cycle of acquire and release", "µs", found, 1e6),
            Plot.of("cycle-async", "The same with asyncio", "µs", afound, 1e6),
        ),
        (
            f"With a lock object {ANEW} for each `with`: {number(with_block)} of redis-py's.",
            f"{SAME.capitalize()}, through redis-py's client / the bare two: {number(same)}.",
        ),
    )


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

    async def run(acquire: Any, release: Any) -> float:
        begun = time.perf_counter()
        for _ in range(CYCLES):
            await acquire()
            await release()
        return (time.perf_counter() - begun) / CYCLES

    return {
        OURS: lambda: runner.run(run(ours.aacquire, ours.arelease)),
        REDIS_PY: lambda: runner.run(run(theirs.acquire, theirs.release)),
        PINGS: lambda: runner.run(run(client.ping, client.ping)),
    }


def _round_trips(url: str) -> float:
    lock = contender(OURS, url, "cycle")
    with RoundTrips() as made:
        cycles(lock, CYCLES)
    return made.count / CYCLES
