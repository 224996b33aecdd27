"""Many locks at a time in one process: each coroutine or thread has a lock of its own.

Over a network, the requests of the process must be on their way at the same time. So the number
of connections and the processor time of a request limit what one process can do.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import redis
import redis.asyncio

from ..contenders import LEASE, OURS, PEERS, REDIS_PY, contender, ours_at
from ..figure import Bench, Figure, Line, Plot, Target, middle
from ..rounds import interleaved

COROUTINES = 100
THREADS = 50

Portion = Callable[[], float]  # returns the cycles per second


def many(bench: Bench) -> Figure:
    seconds = bench.size(1.0, 0.2)
    with asyncio.Runner() as runner, ThreadPoolExecutor(THREADS) as executor:
        parts = (
            _part(
                bench,
                f"{COROUTINES} coroutines",
                _coroutines(runner, bench.url, seconds),
                Target("at least", 1, "all share one connection"),
            ),
            _part(
                bench,
                f"{THREADS} threads",
                _threads(executor, bench.url, seconds),
                Target("at least", 0.9, "redis-py may use a connection for each thread"),
            ),
        )
    return Figure(
        "Many locks at a time in one process",
        tuple(line for part in parts for line in part.lines),
        tuple(plot for part in parts for plot in part.plots),
        tuple(note for part in parts for note in part.notes),
    )


def _part(bench: Bench, who: str, portions: Mapping[str, Portion], target: Target) -> Figure:
    with redis.Redis.from_url(bench.direct_url) as server:
        before = len(server.client_list())
        portions[OURS]()
        connections = len(server.client_list()) - before
    found = interleaved(portions, bench.rounds(5), bench.random)
    peers = [label for label in portions if label != OURS]
    what = f"cycles per second, {who}"
    rates = ", ".join(f"{label} {middle(found, label):,.0f}" for label in found)
    return Figure(
        what,
        (
            *(
                Line.ratio(
                    f"{what} / {peer}", found, OURS, peer, target if peer == REDIS_PY else None
                )
                for peer in peers
            ),
            Line.of(f"connections of {who}", [connections]),
        ),
        (Plot.of(f"many-{who.split()[-1]}", what.capitalize(), "", found),),
        (f"{what}: {rates}.",),
    )


def _threads(executor: ThreadPoolExecutor, url: str, seconds: float) -> dict[str, Portion]:
    def portion(label: str) -> Portion:
        locks = [contender(label, url, f"many:{number}") for number in range(THREADS)]

        def run() -> float:
            begun = time.perf_counter()
            end = begun + seconds
            count = sum(executor.map(partial(_count_cycles, end=end), locks))
            return count / (time.perf_counter() - begun)

        return run

    return {label: portion(label) for label in (OURS, *PEERS)}


def _count_cycles(lock: Any, end: float) -> int:
    count = 0
    while time.perf_counter() < end:
        lock.acquire()
        lock.release()
        count += 1
    return count


def _coroutines(runner: asyncio.Runner, url: str, seconds: float) -> dict[str, Portion]:
    client = redis.asyncio.Redis.from_url(url, max_connections=2 * COROUTINES)
    names = [f"many:{number}" for number in range(COROUTINES)]
    ours = [ours_at(None, f"{OURS}:{name}") for name in names]
    theirs = [client.lock(f"{REDIS_PY}:{name}", timeout=LEASE) for name in names]
    methods = {
        OURS: [(lock.aacquire, lock.arelease) for lock in ours],
        REDIS_PY: [(lock.acquire, lock.release) for lock in theirs],
    }

    async def run(methods: Sequence[tuple[Any, Any]]) -> float:
        begun = time.perf_counter()
        end = begun + seconds
        counts = await asyncio.gather(*(_count_async_cycles(*each, end) for each in methods))
        return sum(counts) / (time.perf_counter() - begun)

    def portion(label: str) -> float:
        return runner.run(run(methods[label]))

    return {label: partial(portion, label) for label in methods}


async def _count_async_cycles(acquire: Any, release: Any, end: float) -> int:
    count = 0
    while time.perf_counter() < end:
        await acquire()
        await release()
        count += 1
    return count
