"""A crowd of waiters that an outage strikes."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from django_redislock.manager import LockManager

from .lock_tools import start, waiting
from .tools import wait_until

CROWD = 50

LIMIT = 30.0
"""The `blocking_timeout` of each waiter, in seconds."""

NAME = "crowded"


def survive(
    manager: LockManager, kind: str, outage: Callable[[], object], **options: Any
) -> list[int]:
    """Let a crowd of threads or tasks wait, let the outage happen, and release the lock.

    Return the waiters in the order in which they acquired it. Each of them must.
    """
    entered: list[int] = []
    options = {"timeout": 60, "blocking_timeout": LIMIT, **options}

    def enter(number: int) -> None:
        with manager.lock(NAME, **options):
            entered.append(number)

    async def aenter(number: int) -> None:
        async with manager.lock(NAME, **options):
            entered.append(number)

    def strike() -> None:
        began = time.monotonic()
        outage()
        away = time.monotonic() - began
        began = time.monotonic()
        wait_until(released)
        wait_until(lambda: len(entered) == CROWD)
        print(f"{kind}: away for {away:.2f} s, all entered {time.monotonic() - began:.2f} s later")

    def released() -> bool:
        try:
            manager.force_release(NAME, token)
        except RedisError:  # the client of the test knows the old primary
            return False
        return True

    async def enter_all() -> None:
        tasks = []
        for number in range(CROWD):
            tasks.append(asyncio.create_task(aenter(number)))
            await asyncio.to_thread(waiting, manager, NAME, number + 1)
        await asyncio.to_thread(lambda: start(strike).result(120))
        await asyncio.gather(*tasks)

    holder = manager.lock(NAME, timeout=60, auto_renewal=False)
    assert holder.acquire()
    token = holder.token
    if kind == "tasks":
        asyncio.run(enter_all())
    else:
        threads = []
        for number in range(CROWD):
            threads.append(start(enter, number))
            waiting(manager, NAME, number + 1)
        strike()
        for each in threads:
            each.result(120)
    assert sorted(entered) == list(range(CROWD))
    return entered
