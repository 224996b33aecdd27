"""The cost of a lock without contention.

- (a) One cycle of acquire and release.
- (d) Ten thousand locks that one process holds and renews.
- (g) The cost for the server: its time, its memory, and the keys that are left.
- (h) The processor time that the package adds to the start of a process that has Django. Other
  load on the machine disturbs this more than the import itself takes, so the fastest of several
  starts counts.
"""

import asyncio
import compileall
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import redis
import redis.asyncio

from django_redislock import locks
from tests.round_trips import RoundTrips
from tests.tools import ROOT, leftovers

from ..contenders import (
    BARE,
    LEASE,
    OURS,
    PEERS,
    PINGS,
    PYTHON_REDIS_LOCK,
    REDIS_PY,
    SAME,
    SENT,
    client_of,
    contender,
)
from ..crew import Crew
from ..figure import Bench, Figure, Line, Plot, number, quantiles, ratios
from ..places import KEYS, total
from ..rounds import cycles, interleaved

CYCLES = 100  # at a time

FRESH = "new object"


def cycle(bench: Bench) -> Figure:
    url, rounds = bench.node.url, bench.rounds(60)
    reused = {
        label: partial(cycles, contender(label, url, "cycle"))
        for label in (OURS, *PEERS, BARE, SAME, SENT, PINGS)
    }
    anew = {
        f"{OURS}, {FRESH}": partial(_blocks, lambda: locks.lock("cycle")),
        f"{REDIS_PY}, {FRESH}": partial(
            _blocks, lambda: client_of(url).lock(f"{REDIS_PY}:cycle", timeout=LEASE)
        ),
    }
    found = interleaved(reused | anew, rounds, bench.random)
    with asyncio.Runner() as runner:
        of_async = _asynchronous(runner, url)
        afound = interleaved(of_async, rounds, bench.random)
    most = "at most"
    lines = (
        Line.ratio("cycle time / redis-py", found, OURS, REDIS_PY, most, 0.95, SENT),
        Line.ratio(f"cycle time / {BARE}", found, OURS, BARE, most, 1.1, SENT),
        Line.of("round trips per cycle", [_round_trips(url)], "exactly", 2),
        Line.ratio("async cycle time / redis-py", afound, OURS, REDIS_PY, most, 0.95, PINGS),
    )
    with_block = quantiles(ratios(*(found[label] for label in anew)))[1]
    same = quantiles(ratios(found[SAME], found[BARE]))[1]
    return Figure(
        "One cycle, uncontended",
        lines,
        (
            Plot.of("cycle", "Acquire and release, uncontended", "µs", found, 1e6),
            Plot.of("cycle-async", "Acquire and release with asyncio", "µs", afound, 1e6),
        ),
        (
            f"With a {FRESH} for each `with` block, cycle time / redis-py: {number(with_block)}.",
            f"{SAME.capitalize()}, sent by redis-py's client / {BARE}: {number(same)}.",
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


PERIOD = {OURS: LEASE / 3, PYTHON_REDIS_LOCK: LEASE * 2 / 3}
"""Seconds from one renewal of a lock to the next."""

THEIRS = PYTHON_REDIS_LOCK


@dataclass(frozen=True)
class Kept:
    """The cost of keeping `locks` locks in one process for a renewal period."""

    locks: int
    threads: int  # in addition to the thread that acquired them
    cpu: float  # of a core
    round_trips: int


def renewal(bench: Bench) -> Figure:
    many, theirs = bench.size(10_000, 1000), 500
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
            Line.of("renewal threads", threads, "exactly", 1),
            Line.of("CPU time, share of a core", cpu, "at most", 1, " %"),
            Line.of("round trips per renewal period", trips, "at most", 100),
        ),
        (
            Plot(
                "renewal",
                f"CPU time to renew 10,000 locks ({THEIRS}: scaled up from {theirs})",
                "% of a core",
                {name: kept.cpu * 100 * 10_000 / kept.locks for name, kept in each.items()},
            ),
        ),
        tuple(
            f"{name}, {kept.locks:,} locks: {kept.threads:,} threads, {kept.cpu:.2%} of a core, "
            f"{kept.round_trips:,} round trips per renewal period of {PERIOD[name]:.0f} s."
            for name, kept in each.items()
        ),
    )


def keep(label: str, url: str, count: int) -> Kept:
    """Acquire and keep locks, in a process that does nothing else."""
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
    time.sleep(PERIOD[label] / 2)  # so that the renewal lies in the middle of the measurement
    threads = threading.active_count() - 1
    with RoundTrips() as made:
        began, cpu = time.monotonic(), time.process_time()
        time.sleep(PERIOD[label])
        seconds, used = time.monotonic() - began, time.process_time() - cpu
    return Kept(len(held), threads, used / seconds, made.count)


SENT_BY_CLIENTS = ("set", "evalsha")
"""Commands that clients send. The time of a script includes the commands that it calls."""


OF_ALL = OURS, REDIS_PY, BARE, SAME


def server(bench: Bench) -> Figure:
    client, url = client_of(bench.node.url), bench.node.url
    many, held = bench.size(500, 50), bench.size(5000, 500)
    contenders = {label: partial(_seconds, client, label, url, many) for label in OF_ALL}
    found = interleaved(contenders, bench.rounds(20), bench.random)
    size = _bytes(client, held)
    with redis.Redis.from_url(url, decode_responses=True) as reader:
        left = leftovers(reader)
    what = f"server CPU time / {BARE}"
    return Figure(
        "On the server",
        (
            Line.ratio(what, found, OURS, BARE, "at most", 3, SAME),
            Line.of("memory of a held lock", [size], "at most", 1024, " B"),
            Line.of("keys left after the release", [float(len(left))], "exactly", 0),
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
print(time.process_time() - begun, *(name for name in ("celery", "redis") if name in sys.modules))
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
    added = [(ours - bare) * 1000 for (ours, _), (bare, _) in pairs]
    brought = {name for _, names in found["with"] for name in names}
    milliseconds = quantiles([bare * 1000 for bare, _ in found["without"]])[1]
    return Figure(
        "Start of a process",
        (
            Line.of("added to the start of Django", added, "at most", 20, " ms"),
            *(
                Line.of(f"imports {name}", [float(name in brought)], "exactly", 0)
                for name in ("celery", "redis")
            ),
        ),
        (),
        (f"Django's own start, with two of its apps: {milliseconds:.0f} ms.",),
    )


def _least(code: str, *apps: str) -> tuple[float, list[str]]:
    return min(_start(code, *apps) for _ in range(STARTS))


def _start(code: str, *apps: str) -> tuple[float, list[str]]:
    """Return the seconds, and the modules of Celery and Redis that were imported."""
    done = subprocess.run(
        [sys.executable, "-c", code, *apps], cwd=ROOT, capture_output=True, text=True, check=True
    )
    seconds, *names = done.stdout.split()
    return float(seconds), names
