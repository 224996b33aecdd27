"""Memory, connections and keys do not grow, however long a process uses locks, while connections
break and replies get lost. ``GROWTH_ROUNDS=300`` makes it run for ten minutes."""

import asyncio
import gc
import os
import random
import time
from collections import defaultdict
from contextlib import closing, suppress
from ctypes import CDLL
from functools import partial
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

import pytest
from redis.exceptions import RedisError

from django_redislock import LockError, locks
from django_redislock.clock import now
from django_redislock.lua import ACQUIRE, RELEASE, RENEW
from tests.servers import Node
from tests.tools import wait_for_none_left

from . import client as own
from .crew import Client, caches, usual_crew
from .events import Log
from .proxy import Proxy, runs

ROUNDS = int(os.environ.get("GROWTH_ROUNDS", 9))
SECONDS = 1.0

LEASE = 0.6

USERS = 4  # threads, and as many tasks
CONNECTIONS = 3

ALLOWED = {"memory": 1024, "objects": 300, "threads": 3, "files": 3, "keys": 0, "connections": 4}
"""Growth from the second third of the rounds to the last. Memory is in KiB."""


def use_all(client: own.Client, seconds: float) -> int:
    """Use locks of all types in threads and in tasks, and return how often."""
    until = now() + seconds
    held: list[bool] = []
    threads = [Thread(target=own.run, args=(use(until, False, held), False)) for _ in range(USERS)]
    for thread in threads:
        thread.start()

    async def use_in_tasks() -> None:
        await asyncio.gather(*(use(until, True, held) for _ in range(USERS)))

    asyncio.run(use_in_tasks())
    for thread in threads:
        thread.join()
    return sum(held)


async def use(until: float, is_async: bool, held: list[bool]) -> None:
    do = partial(own.do, is_async=is_async)
    while now() < until:
        with suppress(LockError, RedisError):
            lock = any_lock()
            held.append(await do(lock, "acquire"))
            if held[-1]:
                await own.pause(random.uniform(0, 0.01), is_async)
                if random.random() < 0.98:  # or it is forgotten, and expires
                    await do(lock, "release")


def any_lock() -> Any:
    options = {"timeout": LEASE, "blocking_timeout": random.uniform(0, 1), "on_lost": repr}
    names = random.sample("abcdef", 3)
    make = random.choice(
        (
            partial(locks.lock, names[0], reentrant=True),
            partial(locks.lock, names[0], at_least_for=0.05),
            partial(locks.semaphore, "shared", 3, weight=2),
            partial(locks.read_lock, "read"),
            partial(locks.write_lock, "read"),
            partial(locks.lock_many, names),
        )
    )
    return make(**options)


def measure(client: own.Client) -> dict[str, int]:
    gc.collect()
    CDLL(None).malloc_trim(0)  # return free memory to the system
    lines = Path("/proc/self/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    return {
        "memory": int(status["RssAnon"].split()[0]),  # without mapped files
        "objects": len(gc.get_objects()),
        "threads": sum(1 for _ in Path("/proc/self/task").iterdir()),
        "files": sum(1 for _ in Path("/proc/self/fd").iterdir()),
    }


def strike(proxy: Proxy) -> None:
    match random.choice(("cut", "freeze", "refuse", "lose a reply")):
        case "cut":
            proxy.cut()
        case "freeze":
            proxy.freeze()
            time.sleep(LEASE * 1.2)
            proxy.thaw()
        case "refuse":
            proxy.refuse()
            proxy.cut()
            time.sleep(LEASE * 1.2)
            proxy.accept()
        case "lose a reply":
            proxy.drop_reply(runs(random.choice((ACQUIRE, RELEASE, RENEW))))


@pytest.mark.timeout(60 + 20 * ROUNDS)
def test_memory_connections_and_keys_do_not_grow(tmp_path: Path) -> None:
    measured: defaultdict[str, list[int]] = defaultdict(list)
    with Node() as node, Proxy(*node.address) as proxy, closing(Log(tmp_path, "harness")) as log:
        settings = caches(proxy.url, max_connections=CONNECTIONS)
        client = Client(usual_crew(), "user", log, settings, seed="")
        for _ in range(ROUNDS):
            client.start(f"{__name__}:use_all", seconds=SECONDS)
            time.sleep(random.uniform(0, SECONDS / 2))
            strike(proxy)
            assert client.answer() > 10
            with node.client() as looks:
                # Locks that were forgotten expire, and so do waiters whose connection broke.
                left = wait_for_none_left(looks, timeout=12)
                found = client.ask(f"{__name__}:measure")
                found |= {"keys": len(left), "connections": len(looks.client_list())}
            for what, value in found.items():
                measured[what].append(value)
        client.end()
    third = ROUNDS // 3
    grown = {what: median(v[-third:]) - median(v[third:-third]) for what, v in measured.items()}
    assert [what for what, by in grown.items() if by > ALLOWED[what]] == [], measured
    assert measured["keys"] == [0] * ROUNDS
