"""The orders that the clients of a soak execute in a round."""

import asyncio
import contextlib
import gc
import random
import time
from collections.abc import Callable, Iterator
from ctypes import CDLL
from functools import partial
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

from redis.exceptions import RedisError

from django_redislock import LockError, locks
from django_redislock.clock import now

from .. import client as own
from ..client import Client

LEASES = 0.8, 1.2
WORK = 0.01
WAIT = 1.0  # maximum in seconds

THREADS = 4
CONNECTIONS = 3  # fewer than threads
TASKS = 8
NAMES = 12  # number of locks in a round that the checker does not judge

QUORUM = "default", "second", "third"  # cache aliases, each with its own server

FORGETS = 0.02  # probability that a holder does not release the lock

JUDGED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("mutex", {}),
    ("shared", {"kind": "semaphore", "limit": 2, "writes": False}),
    ("read and written", {"kind": "read_lock", "writes": False}),
    ("read and written", {"kind": "write_lock"}),
)
"""The locks of a round whose events are logged for the checker."""


class Round:
    """One round of one client."""

    def __init__(self, client: Client, number: int, seconds: float) -> None:
        self.client = client
        self.number = number
        self.until = now() + seconds
        self.held = 0
        self.troubles: list[str] = []

    @property
    def goes_on(self) -> bool:
        return now() < self.until

    def report(self) -> dict[str, Any]:
        return {"held": self.held, "troubles": self.troubles}

    def judged(self) -> dict[str, Any]:
        """Choose arguments for the next acquisition that is logged."""
        name, options = self.client.random.choice(JUDGED)
        wait = self.client.random.uniform(0, WAIT)
        arguments = {"lock": f"round {self.number} {name}", "how": {"blocking_timeout": wait}}
        return arguments | options | {"timeout": self.client.random.uniform(*LEASES)}

    def lock(self, choose: random.Random) -> Any:
        """Choose a lock for the next acquisition that is not logged."""
        name = f"round {self.number}, {choose.randrange(NAMES)}"
        options = {
            "timeout": choose.uniform(*LEASES),
            "blocking_timeout": choose.uniform(0, WAIT),
            "metadata": {"round": self.number},
            "on_lost": repr,
        }
        names = [f"round {self.number}, {other}" for other in choose.sample(range(NAMES), 3)]
        make: Callable[..., Any] = choose.choice(
            (
                partial(locks.lock, name),
                partial(locks.lock, name, reentrant=True),
                partial(locks.lock, name, at_least_for=0.05),
                partial(locks.semaphore, f"{name}, shared", 3, weight=choose.randint(1, 3)),
                partial(locks.read_lock, f"{name}, read and written"),
                partial(locks.write_lock, f"{name}, read and written"),
                partial(locks.lock_many, names),
                partial(locks.quorum, name, QUORUM),
            )
        )
        return make(**options)

    @contextlib.contextmanager
    def using(self, lock: Any) -> Iterator[None]:
        try:
            yield
        except (LockError, RedisError):
            pass
        except Exception as error:
            self.troubles.append(f"{lock!r}: {error!r}")


# Work in threads, greenlets, or tasks. Tasks have a new loop in each round


def work(client: Client, folder: str, **arguments: Any) -> dict[str, Any]:
    client.move(Path(folder))
    turn = Round(client, **arguments)
    threads = [
        Thread(target=own.run, args=(_use_all(turn, place, False), False))
        for place in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    own.run(_be_judged(turn, False), False)
    for thread in threads:
        thread.join()
    return turn.report()


def awork(client: Client, folder: str, **arguments: Any) -> dict[str, Any]:
    client.move(Path(folder))
    turn = Round(client, **arguments)
    asyncio.run(_awork(turn))
    return turn.report()


async def _awork(turn: Round) -> None:
    async with asyncio.TaskGroup() as tasks:
        for place in range(TASKS):
            tasks.create_task(_use_all(turn, place, True))
        await _be_judged(turn, True)


async def _be_judged(turn: Round, is_async: bool) -> None:
    while turn.goes_on:
        with contextlib.suppress(Exception):  # it is logged
            await own.once(turn.client, is_async=is_async, work=(0, WORK), **turn.judged())


async def _use_all(turn: Round, place: int, is_async: bool) -> None:
    choose = random.Random(f"{turn.client.who} {turn.number} {place}")
    do = partial(own.do, is_async=is_async)
    while turn.goes_on:
        lock = turn.lock(choose)
        with turn.using(lock):
            if not await do(lock, "acquire"):
                continue
            turn.held += 1
            await own.pause(choose.uniform(0, WORK), is_async)
            if choose.random() < FORGETS:
                continue
            if choose.random() < 0.3:
                await do(lock, "extend", lock.timeout)
            if lock.reentrant:
                await do(lock, "acquire")
                await do(lock, "release")
            await do(lock, "release")


# An operator


def operate(client: Client, folder: str, **arguments: Any) -> dict[str, Any]:
    """List and describe locks, and force-release locks that are not judged."""
    client.move(Path(folder))
    turn = Round(client, **arguments)
    while turn.goes_on:
        with turn.using("operator"):
            _look(turn)
        time.sleep(client.random.uniform(0, WORK))
    return turn.report()


def _look(turn: Round) -> None:
    choose, infos = turn.client.random, list(locks.active())
    locks.page("*", stop=10)
    locks.history(limit=20)
    locks.rates()
    locks.ping()
    for info in choose.sample(infos, min(len(infos), 3)):
        locks.get(info.name)
        locks.queue(info.name)
        if "," in info.name and info.token and choose.random() < 0.2:
            turn.held += locks.force_release(info.name, choose.choice((info.token, None)))


# Between rounds


def _open_connections() -> None:
    """Use all connections at the same time. Otherwise the number would still grow late in the
    soak, when more threads than ever need one, and connections that were closed would be
    missing."""
    for alias in QUORUM:
        begin = Barrier(CONNECTIONS)
        threads = [Thread(target=_ping, args=(alias, begin)) for _ in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _ping(alias: str, begin: Barrier) -> None:
    for _ in range(20):
        begin.wait()
        locks.using(alias).ping()


def forget_the_expired(client: Client) -> int:
    """Remove expired locks by listing all locks, and return the number of held locks."""
    return sum(len(list(locks.using(alias).active())) for alias in QUORUM)


def measure(client: Client) -> dict[str, float]:
    _open_connections()
    gc.collect()
    gc.collect()
    CDLL(None).malloc_trim(0)  # return free memory to the system before the measurement
    status = Path("/proc/self/status").read_text().splitlines()
    about = dict(line.split(":", 1) for line in status)
    return {
        "memory": int(about["RssAnon"].split()[0]),  # without mapped files
        "objects": len(gc.get_objects()),
        "threads": _entries("/proc/self/task"),
        "descriptors": _entries("/proc/self/fd"),
    }


def _entries(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())
