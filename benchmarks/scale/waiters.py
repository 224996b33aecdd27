"""``python -m benchmarks.scale.waiters`` measures many waiters of one process, and writes a table.

Each load runs in its own process. All waiters request the lock once, at the same time, and release
it at once.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Barrier, Event, Thread
from typing import Any

from tests.faults.table import markdown, write
from tests.servers import Node

from ..bench import report

BEGIN = "<!-- waiters: written by `make waiters` -->"
END = "<!-- waiters: end -->"

FEW_CONNECTIONS = 4

MAX_WAIT_SECONDS = 120.0
IDLE_SECONDS = 5.0


@dataclass(frozen=True)
class Load:
    waiters: int
    locks: int = 1
    kind: str = "coroutine"

    max_connections: int = 50
    """The setting ``REDISLOCK_MAX_CONNECTIONS``, which is a limit for threads."""

    idle: bool = False
    """Whether no waiter acquires the lock, to count the commands of waiting."""


LOADS = [
    *(Load(waiters) for waiters in (1, 10, 100, 1_000, 10_000)),
    *(Load(waiters, waiters // 10) for waiters in (100, 1_000, 10_000)),
    *(Load(waiters, kind="thread") for waiters in (1, 50, 500)),
    *(Load(waiters, waiters // 10, kind="thread") for waiters in (50, 500)),
    Load(500, kind="thread", max_connections=FEW_CONNECTIONS),
]
IDLE_LOADS = [Load(10_000, idle=True), Load(10_000, 1_000, idle=True)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale.waiters")
    parser.add_argument("--write", type=Path, help="write the tables into this page")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        print(json.dumps(_run(Load(**json.loads(options.load)))))
        return 0
    with Node() as node:
        rows = [_measure(node, load) for load in LOADS]
        idle = [_measure(node, load) for load in IDLE_LOADS]
        where = report.where_it_ran(node)
    head = (
        *("Waiters", "Locks", "`MAX_CONNECTIONS`", "Handovers per second", "Commands for each"),
        *("Connections", "Longest wait", "Errors", "Locks lost"),
    )
    idle_head = ("Idle waiters", "Locks", "Commands per second", "Commands in scripts per second")
    rule = ("--:",) * 9
    text = (
        f"{where}\n\n{markdown(head, rule, *rows)}\n\n{markdown(idle_head, ('--:',) * 4, *idle)}"
    )
    print(text)
    if options.write:
        write(options.write, text, BEGIN, END)
    return 0


def _measure(node: Node, load: Load) -> tuple[str, ...]:
    """Run a load in its own process, and return a row of the table."""
    client, most, is_over = node.client(), 0, Event()

    def count_connections() -> None:
        nonlocal most
        while not is_over.wait(0.02):
            names = [each["name"] for each in client.client_list()]
            most = max(most, names.count("waiters"))

    client.flushdb()
    client.config_resetstat()
    counting = Thread(target=count_connections)
    counting.start()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.scale.waiters", "--load", json.dumps(asdict(load))],
            env=os.environ | {"REDIS_URL": node.url},
            stdout=subprocess.PIPE,
            check=True,
        )
    finally:
        is_over.set()
        counting.join()
    found = json.loads(done.stdout)
    several = "s" if load.waiters > 1 else ""
    who = f"{load.waiters:,} {load.kind}{several}", f"{load.locks:,}"
    if load.idle:
        return *who, f"{found['sent']:.0f}", f"{found['in_scripts']:,.0f}"
    row = (
        *who,
        f"{load.max_connections}" if load.kind == "thread" else "",
        f"{found['acquired'] / found['seconds']:,.0f}",
        f"{_sent(client) / max(found['acquired'], 1):.2f}",
        f"{most}",
        f"{found['longest']:.2f} s",
        ", ".join(f"{count} {error}" for error, count in found["errors"].items()) or "none",
        f"{found['lost']}",
    )
    print(*row, sep=" | ", file=sys.stderr)
    return row


def _sent(client: Any) -> int:
    """Return the number of commands from clients, without the commands that scripts call."""
    stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{each}", {}).get("calls", 0) for each in ("evalsha", "blpop"))


def _all_commands(client: Any) -> int:
    stats = client.info("commandstats")
    return sum(each["calls"] for each in stats.values())


# The process with the waiters


class Tally:
    """The results of the waiters."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.errors: Counter[str] = Counter()
        self.lost = 0

    def holds(self, lock: Any, began: float) -> None:
        self.waits.append(time.monotonic() - began)
        self.lost += lock.lost

    def failed(self, error: Exception) -> None:
        self.errors[type(error).__name__] += 1

    def result(self, began: float) -> dict[str, Any]:
        return {
            "seconds": time.monotonic() - began,
            "acquired": len(self.waits),
            "longest": max(self.waits, default=0),
            "errors": self.errors,
            "lost": self.lost,
        }


def _run(load: Load) -> dict[str, Any]:
    import django
    from django.conf import settings

    os.environ["DJANGO_SETTINGS_MODULE"] = "testproject.settings"
    location = f"{os.environ['REDIS_URL']}?client_name=waiters"
    backend = "django.core.cache.backends.redis.RedisCache"
    settings.CACHES = {"default": {"BACKEND": backend, "LOCATION": location}}
    settings.REDISLOCK_MAX_CONNECTIONS = load.max_connections
    django.setup()
    if load.kind == "thread":
        return _threads(load)
    return asyncio.run(_idle(load) if load.idle else _coroutines(load))


def _locks(load: Load) -> list[Any]:
    from django_redislock import locks

    return [
        locks.lock(f"waited for:{number % load.locks}", blocking_timeout=MAX_WAIT_SECONDS)
        for number in range(load.waiters)
    ]


async def _coroutines(load: Load) -> dict[str, Any]:
    tally = Tally()

    async def wait(lock: Any) -> None:
        began = time.monotonic()
        try:
            async with lock:
                tally.holds(lock, began)
        except Exception as error:
            tally.failed(error)

    began = time.monotonic()
    await asyncio.gather(*map(wait, _locks(load)))
    return tally.result(began)


def _threads(load: Load) -> dict[str, Any]:
    tally, barrier = Tally(), Barrier(load.waiters + 1)

    def wait(lock: Any) -> None:
        barrier.wait()
        began = time.monotonic()
        try:
            with lock:
                tally.holds(lock, began)
        except Exception as error:
            tally.failed(error)

    threads = [Thread(target=wait, args=(lock,)) for lock in _locks(load)]
    for thread in threads:
        thread.start()
    barrier.wait()
    began = time.monotonic()
    for thread in threads:
        thread.join()
    return tally.result(began)


async def _queued(names: Iterable[str]) -> int:
    from django_redislock import locks

    return sum([(await locks.aget(name)).waiters for name in names])


async def _idle(load: Load) -> dict[str, Any]:
    import redis

    from django_redislock import locks

    client = redis.Redis.from_url(os.environ["REDIS_URL"])
    waited_for = _locks(load)
    names = {lock.name for lock in waited_for}
    holders = [locks.lock(name, timeout=600) for name in names]
    for holder in holders:
        await holder.aacquire()
    tasks = [asyncio.create_task(lock.aacquire()) for lock in waited_for]
    while await _queued(names) < load.waiters:  # noqa: ASYNC110  Redis sets no event
        await asyncio.sleep(0.5)
    sent, every, began = _sent(client), _all_commands(client), time.monotonic()
    await asyncio.sleep(IDLE_SECONDS)
    lasted = time.monotonic() - began
    sent, every = _sent(client) - sent, _all_commands(client) - every
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return {"sent": sent / lasted, "in_scripts": (every - sent) / lasted}


if __name__ == "__main__":
    sys.exit(main())
