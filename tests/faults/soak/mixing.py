"""What the clients of a soak do in a round."""

import asyncio
import contextlib
import gc
import random
import time
from collections.abc import Callable, Iterator
from ctypes import CDLL
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from redis.exceptions import RedisError

from django_redislock import LockError, locks
from django_redislock.clock import now
from django_redislock.engine.transport import get_connection

from .. import client as own
from ..client import Client

LEASES = 0.8, 1.2
WORK = 0.01
WAIT = 1.0  # seconds, each the most

THREADS = 4
CONNECTIONS = 2 * (THREADS + 2)
TASKS = 8
NAMES = 12  # of a round's locks that are not judged

QUORUM = "default", "second", "third"  # the aliases that it is over, each on a server of its own

FORGETS = 0.02  # how often who holds a lock does not let go of it

JUDGED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("mutex", {}),
    ("shared", {"kind": "semaphore", "limit": 2, "writes": False}),
    ("read and written", {"kind": "read_lock", "writes": False}),
    ("read and written", {"kind": "write_lock"}),
)
"""The round's locks of which all is noted down, for the checker."""


class Round:
    """One round, as one client has it."""

    def __init__(self, client: Client, number: int, seconds: float) -> None:
        self.client = client
        self.number = number
        self.until = now() + seconds
        self.held = 0
        self.troubles: list[str] = []

    @property
    def goes_on(self) -> bool:
        return now() < self.until

    def told(self) -> dict[str, Any]:
        return {"held": self.held, "troubles": self.troubles}

    def judged(self) -> dict[str, Any]:
        """What to do next that is noted down."""
        name, options = self.client.random.choice(JUDGED)
        wait = self.client.random.uniform(0, WAIT)
        told = {"lock": f"round {self.number} {name}", "how": {"blocking_timeout": wait}}
        return told | options | {"timeout": self.client.random.uniform(*LEASES)}

    def lock(self, choose: random.Random) -> Any:
        """What to use next that is not."""
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


# In threads, greenlets, or tasks, which have a new loop in each round


def work(client: Client, folder: str, **told: Any) -> dict[str, Any]:
    client.move(Path(folder))
    turn = Round(client, **told)
    threads = [
        Thread(target=own.run, args=(_use_all(turn, place, False), False))
        for place in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    own.run(_be_judged(turn, False), False)
    for thread in threads:
        thread.join()
    return turn.told()


def awork(client: Client, folder: str, **told: Any) -> dict[str, Any]:
    client.move(Path(folder))
    turn = Round(client, **told)
    asyncio.run(_awork(turn))
    return turn.told()


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


def operate(client: Client, folder: str, **told: Any) -> dict[str, Any]:
    """List, tell, and force what is not judged."""
    client.move(Path(folder))
    turn = Round(client, **told)
    while turn.goes_on:
        with turn.using("operator"):
            _look(turn)
        time.sleep(client.random.uniform(0, WORK))
    return turn.told()


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


# When all rest


def _open_connections() -> None:
    """As many as it can ever use at a time. Else its pools came to have them later and later,
    whenever more of its threads than ever happened to need one; and those that were closed would
    be missing."""
    for pool in map(_pool, QUORUM):
        connections = [get_connection(pool) for _ in range(CONNECTIONS)]
        for connection in connections:
            pool.release(connection)


def lost_turns(client: Client, lock: str) -> list[int | None]:
    """The fencing tokens of those whose lease ran out. Some never knew that it was their turn."""
    return [each.fence_token for each in locks.history(lock, 1000) if each.outcome == "expired"]


def forget_the_expired(client: Client) -> int:
    """Who lists has what ran out forgotten; how many are held."""
    return sum(len(list(locks.using(alias).active())) for alias in QUORUM)


def measure(client: Client) -> dict[str, float]:
    _open_connections()
    gc.collect()
    gc.collect()
    CDLL(None).malloc_trim(0)  # what is free is no part of what it needs
    status = Path("/proc/self/status").read_text().splitlines()
    about = dict(line.split(":", 1) for line in status)
    return {
        "memory": int(about["RssAnon"].split()[0]),  # without what is mapped from files
        "objects": len(gc.get_objects()),
        "threads": _entries("/proc/self/task"),
        "descriptors": _entries("/proc/self/fd"),
        "connections in use": sum(len(_pool(alias)._in_use_connections) for alias in QUORUM),
    }


def _pool(alias: str) -> Any:
    return locks.using(alias)._server().client.connection_pool


def _entries(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())
