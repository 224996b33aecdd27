"""Many locks at a time in one process: each coroutine or thread has a lock of its own.

On a network, the requests of the process must be on the way at the same time. What limits them is
the pool of connections, and the processor time of a request.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import redis.asyncio

from ..contenders import LEASE, MAX_CONNECTIONS, OURS, PEERS, REDIS_PY, contender, ours_at
from ..figure import Bench, Figure, Line, Plot, middle
from ..rounds import interleaved

COROUTINES = 100
THREADS = 50


def many(bench: Bench) -> Figure:
    seconds, rounds = bench.size(1.0, 0.4), bench.rounds(8)
    with asyncio.Runner() as runner:
        coroutines = interleaved(_of_coroutines(runner, bench.url, seconds), rounds, bench.random)
    with ThreadPoolExecutor(THREADS) as executor:
        of_threads = {
            label: partial(_in_threads, executor, _named(label, bench.url), seconds)
            for label in (OURS, *PEERS)
        }
        threads = interleaved(of_threads, rounds, bench.random)
    what = "cycles per second, {} {} / {}"
    return Figure(
        f"Many locks at a time, {MAX_CONNECTIONS} connections",
        (
            Line.ratio(
                what.format(COROUTINES, "coroutines", REDIS_PY),
                coroutines,
                OURS,
                REDIS_PY,
                "at least",
                1,
            ),
            *(
                Line.ratio(
                    what.format(THREADS, "threads", peer), threads, OURS, peer, "at least", 0.9
                )
                for peer in PEERS
            ),
        ),
        (
            Plot.of("coroutines", f"Cycles per second, {COROUTINES} coroutines", "", coroutines),
            Plot.of("threads", f"Cycles per second, {THREADS} threads", "", threads),
        ),
        tuple(
            f"Cycles per second of {what}: "
            + ", ".join(f"{label} {middle(found, label):,.0f}" for label in found)
            + "."
            for what, found in (
                (f"{COROUTINES} coroutines", coroutines),
                (f"{THREADS} threads", threads),
            )
        ),
    )


def _named(label: str, url: str) -> list[Any]:
    return [contender(label, url, f"many:{number}") for number in range(THREADS)]


def _in_threads(executor: ThreadPoolExecutor, held: Sequence[Any], seconds: float) -> float:
    """Return the cycles per second of all threads."""
    begun = time.perf_counter()
    end = begun + seconds

    def work(lock: Any) -> int:
        count = 0
        while time.perf_counter() < end:
            lock.acquire()
            lock.release()
            count += 1
        return count

    count = sum(executor.map(work, held))
    return count / (time.perf_counter() - begun)


def _of_coroutines(
    runner: asyncio.Runner, url: str, seconds: float
) -> dict[str, Callable[[], float]]:
    names = [f"many:{number}" for number in range(COROUTINES)]
    ours = [ours_at(None, f"{OURS}:{name}") for name in names]
    client = redis.asyncio.Redis.from_url(url, max_connections=1000)
    theirs = [client.lock(f"{REDIS_PY}:{name}", timeout=LEASE) for name in names]

    async def work(acquire: Any, release: Any, end: float) -> int:
        count = 0
        while time.perf_counter() < end:
            await acquire()
            await release()
            count += 1
        return count

    async def run(methods: Sequence[tuple[Any, Any]]) -> float:
        begun = time.perf_counter()
        counts = await asyncio.gather(*(work(*each, begun + seconds) for each in methods))
        return sum(counts) / (time.perf_counter() - begun)

    of_ours = [(lock.aacquire, lock.arelease) for lock in ours]
    of_theirs = [(lock.acquire, lock.release) for lock in theirs]
    return {
        OURS: lambda: runner.run(run(of_ours)),
        REDIS_PY: lambda: runner.run(run(of_theirs)),
    }
