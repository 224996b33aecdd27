"""The cost of a lock without contention.

- cycle: one lock after the other, each acquired and released.
- renewal: ten thousand locks that one process holds and renews.
- server: the cost for the server: its time and its memory.
- start: the processor time that the package adds to the start of a process that has Django. Other
  load on the machine disturbs this more than the import itself takes, so the fastest of several
  starts counts.
"""

import asyncio
import compileall
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple

import redis
import redis.asyncio

from django_redislock import locks
from tests.tools import ROOT

from ..contenders import (
    BARE,
    LEASE,
    OURS,
    PEERS,
    REDIS_PY,
    RENEWED,
    client_of,
    contender,
    ours_at,
)
from ..crew import Crew
from ..figure import Bench, Figure, Found, Line, Plot, Target, middle
from ..places import KEYS, cpu_seconds, total
from ..rounds import cycles, interleaved

PORTION_SECONDS = 0.2

MAX_CYCLES = 200  # in a portion


class Cost(NamedTuple):
    """The seconds of a cycle of acquire and release."""

    duration: float
    cpu: float  # processor time of client and server


def cycle(bench: Bench) -> Figure:
    count = MAX_CYCLES
    if bench.round_trip:
        count = min(count, round(PORTION_SECONDS / (2 * bench.round_trip)))
    rounds = bench.rounds(15)
    with redis.Redis.from_url(bench.direct_url) as server, asyncio.Runner() as runner:
        cost = partial(_cost, server, count)
        of_sync = {
            label: partial(cost, partial(cycles, contender(label, bench.url, "cycle"), count))
            for label in (OURS, *PEERS)
        }
        of_async = {
            label: partial(cost, partial(_run, runner, run))
            for label, run in _coroutines(bench.url, count).items()
        }
        costs = interleaved(of_sync, rounds, bench.random)
        async_costs = interleaved(of_async, rounds, bench.random)
    found = _each(costs, "duration")
    async_found = _each(async_costs, "duration")
    cpu = _each(costs, "cpu")
    async_cpu = _each(async_costs, "cpu")
    limit = bench.here(network=1.03, loopback=1.2)
    duration = Target("at most", limit, "as many round trips, but more work in each")
    cpu_time = Target("at most", 1.2, "the price of renewal, order, fencing and history")
    cpu_what = "CPU time of client and server"
    compared = (
        ("cycle time", found, REDIS_PY, duration),
        *(("cycle time", found, peer, None) for peer in PEERS if peer != REDIS_PY),
        ("cycle time, asyncio", async_found, REDIS_PY, duration),
        (cpu_what, cpu, REDIS_PY, cpu_time),
        (f"{cpu_what}, asyncio", async_cpu, REDIS_PY, None),
    )
    return Figure(
        "One lock after the other",
        tuple(
            Line.ratio(f"{what} / {peer}", of, OURS, peer, target)
            for what, of, peer, target in compared
        ),
        (
            Plot.of("cycle", "Acquire and release", "ms", found, 1e3),
            Plot.of("cycle-async", "Acquire and release with asyncio", "ms", async_found, 1e3),
        ),
    )


def _each(costs: Mapping[str, Sequence[Cost]], name: str) -> Found:
    return {label: [getattr(cost, name) for cost in some] for label, some in costs.items()}


def _cost(server: redis.Redis, count: int, portion: Callable[[], float]) -> Cost:
    """Run a portion of `count` cycles, which returns the seconds of one."""
    server_began = cpu_seconds(server)
    client_began = time.process_time()
    duration = portion()
    of_client = time.process_time() - client_began
    of_server = cpu_seconds(server) - server_began
    return Cost(duration, (of_client + of_server) / count)


Run = Callable[[], Coroutine[Any, Any, float]]


def _run(runner: asyncio.Runner, run: Run) -> float:
    return runner.run(run())


def _coroutines(url: str, count: int) -> dict[str, Run]:
    ours = ours_at(None, "async")
    theirs = redis.asyncio.Redis.from_url(url).lock(f"{REDIS_PY}:async", timeout=LEASE)

    async def run(acquire: Any, release: Any) -> float:
        begun = time.perf_counter()
        for _ in range(count):
            await acquire()
            await release()
        return (time.perf_counter() - begun) / count

    return {
        OURS: partial(run, ours.aacquire, ours.arelease),
        REDIS_PY: partial(run, theirs.acquire, theirs.release),
    }


KEPT = {OURS: 10_000, RENEWED: 500}
"""Locks of one process. Each of python-redis-lock has a thread of its own, so it has fewer."""

PERIODS = {OURS: 1 / 3, RENEWED: 2 / 3}
"""The part of a lease from one renewal to the next."""

RENEWED_LEASE = 15  # seconds, because the default of 30 would double the time of the benchmark

KEEPERS = 50  # threads that acquire the locks


class Kept(NamedTuple):
    """The cost of renewing all locks of one process once."""

    cpu_ms: float
    threads: int  # of the process, in addition to those that acquired the locks


def renewal(bench: Bench) -> Figure:
    labels = [label for label in KEPT if label in (OURS, *PEERS)]
    kept = {label: bench.size(KEPT[label], KEPT[label] // 10) for label in labels}
    lease = bench.size(RENEWED_LEASE, 4)
    with Crew(1, {"default": bench.url}) as crew:
        contenders = {
            label: partial(crew.order, 1, keep, label, bench.url, kept[label], lease)
            for label in labels
        }
        answers = interleaved(contenders, bench.size(2, 1), bench.random, warm=False)
    found = {label: [answer for [answer] in some] for label, some in answers.items()}
    cpu_of_lock = {
        label: [each.cpu_ms / kept[label] for each in some] for label, some in found.items()
    }
    cpu = [each.cpu_ms for each in found[OURS]]
    short = Target("at most", 100, "2% of the 5 seconds between two rounds")
    lines = [Line.of("CPU time of a round", cpu, short, " ms")]
    if RENEWED in found:
        what = f"CPU time of a lock / {RENEWED}"
        lines.append(Line.ratio(what, cpu_of_lock, OURS, RENEWED))
    return Figure(
        f"Renewal of {kept[OURS]:,} locks that one process holds",
        tuple(lines),
        (Plot.of("renewal", "CPU time to renew 10,000 locks once", "ms", cpu_of_lock, 10_000),),
        tuple(
            f"{label}, {kept[label]:,} locks: {some[0].threads} threads, "
            f"{some[0].cpu_ms:,.0f} ms of CPU time in a round."
            for label, some in found.items()
        ),
    )


def keep(label: str, url: str, count: int, lease: int) -> Kept:
    """Acquire and keep locks, in a process that does nothing else."""
    held = [contender(label, url, f"kept:{number}", lease=lease) for number in range(count)]
    are_held = threading.Barrier(KEEPERS + 1)
    is_over = threading.Event()

    def hold(some: Sequence[Any]) -> None:
        for lock in some:
            lock.acquire()
        are_held.wait()
        is_over.wait()
        for lock in some:
            with nullcontext() if label == OURS else suppress(RuntimeError):  # it was lost
                lock.release()

    # One thread alone would need minutes over a network.
    with ThreadPoolExecutor(KEEPERS) as executor:
        holding = [executor.submit(hold, held[number::KEEPERS]) for number in range(KEEPERS)]
        are_held.wait()
        try:
            kept = _watched(lease * PERIODS[label])
        finally:
            is_over.set()
        for each in holding:
            each.result()
    return kept


def _watched(period: float) -> Kept:
    time.sleep(period / 2)  # so that the renewal lies in the middle of the measurement
    threads = threading.active_count() - KEEPERS - 1
    began = time.process_time()
    time.sleep(period)
    return Kept((time.process_time() - began) * 1000, threads)


SENT_BY_CLIENTS = ("set", "evalsha")
"""Commands that clients send. The time of a script includes the commands that it calls."""


OF_ALL = OURS, REDIS_PY, BARE


def server(bench: Bench) -> Figure:
    client, url = client_of(bench.url), bench.url
    many, held = bench.size(500, 50), bench.size(5000, 500)
    contenders = {label: partial(_seconds, client, label, url, many) for label in OF_ALL}
    found = interleaved(contenders, bench.rounds(20), bench.random)
    size = _bytes(client, held)
    what = f"server CPU time / {BARE}"
    light = Target("at most", 3, "Redis executes one script at a time")
    return Figure(
        "On the server",
        (
            Line.ratio(what, found, OURS, BARE, light),
            Line.of("memory of a held lock", [size], unit=" B"),
        ),
        (Plot.of("server", "Server CPU time for acquire and release", "µs", found, 1e6),),
    )


def _seconds(client: redis.Redis, label: str, url: str, many: int) -> float:
    lock = contender(label, url, "server")
    client.config_resetstat()
    cycles(lock, many)
    return total(client, "usec", *SENT_BY_CLIENTS) / 1e6 / many


def _bytes(client: redis.Redis, count: int) -> float:
    """Return the memory of all keys of held locks, divided by the number of locks."""
    held = [locks.lock(f"held:{number}") for number in range(count)]
    for lock in held:
        lock.acquire()
    keys = [
        key
        for key in client.scan_iter(match=f"{{{KEYS}}}:*", count=1000)
        if b":history:" not in key
    ]
    pipeline = client.pipeline(transaction=False)
    for key in keys:
        pipeline.memory_usage(key, samples=0)
    total = sum(pipeline.execute())
    for lock in held:
        lock.release()
    return total / count


START = """
import sys, time
import django
from django.conf import settings
apps = ["django.contrib.contenttypes", "django.contrib.auth", *sys.argv[1:]]
settings.configure(
    INSTALLED_APPS=apps,
    CACHES={{"default": {{
        "BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "redis://127.0.0.1"
    }}}},
)
begun = time.process_time()
{imports}
django.setup()
print(time.process_time() - begun)
"""

WITHOUT = START.format(imports="")
WITH = START.format(imports="import django_redislock")

STARTS = 3


def importing(bench: Bench) -> Figure:
    compileall.compile_dir(ROOT / "django_redislock", quiet=1)  # as pip does with other packages
    found = interleaved(
        {"without": partial(_least, WITHOUT), "with": partial(_least, WITH, "django_redislock")},
        bench.rounds(15),
        bench.random,
    )
    pairs = zip(found["with"], found["without"], strict=True)
    added = [(ours - bare) * 1000 for ours, bare in pairs]
    return Figure(
        "Start of a process",
        (Line.of("added to the start of Django", added, unit=" ms"),),
        (),
        (f"Django's own start, with two of its apps: {middle(found, 'without') * 1000:.0f} ms.",),
    )


def _least(code: str, *apps: str) -> float:
    return min(_start(code, *apps) for _ in range(STARTS))


def _start(code: str, *apps: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", code, *apps], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return float(done.stdout)
