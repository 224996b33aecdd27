"""What clients do beside `client.loop`: hold on to a lock, and take turns from asyncio. Asked for
by their paths."""

import asyncio
import time
from typing import Any

from django_redislock import locks
from django_redislock.clock import now

from .client import Client, acquire, release, write

EVERY = 0.02
"""Seconds between two looks at a lock that is held."""


def keep(client: Client, lock: str, **options: Any) -> str:
    """Hold it and write, again and again, until it is lost or there is another order; then let
    go of it. Tells which."""
    acquire(client, lock, **options)
    while write(client, lock)["wrote"]:
        if client.is_told():
            release(client, lock)
            return "released"
        time.sleep(EVERY)
    return "lost"


def look(client: Client, lock: str) -> int:
    """See again and again that it is held, and all else that can be told of it; how often."""
    done = 0
    while not client.is_told():
        info = locks.get(lock)
        assert info, f"{lock} is not held"
        assert info.token, f"nobody holds {lock}"
        assert lock in {each.name for each in locks.active()}
        locks.queue(lock)
        locks.history(lock)
        done += 1
    return done


def aloop(client: Client, lock: str, **options: Any) -> int:
    """As `client.loop`, by a task of asyncio; how often it held."""
    return asyncio.run(_aloop(client, lock, **options))


async def _aloop(
    client: Client,
    lock: str,
    work: tuple[float, float] = (0, 0.01),
    rest: tuple[float, float] = (0, 0.01),
    **options: Any,
) -> int:
    done = 0
    while not client.is_told():
        try:
            done += await _once(client, lock, work, options)
        except Exception:
            await asyncio.sleep(0.01)
        await asyncio.sleep(client.random.uniform(*rest))
    return done


async def _once(
    client: Client, lock: str, work: tuple[float, float], options: dict[str, Any]
) -> bool:
    if not await _acquire(client, lock, **options):
        return False
    write(client, lock)
    await asyncio.sleep(client.random.uniform(*work))
    write(client, lock)
    await _release(client, lock)
    return True


async def _acquire(client: Client, lock: str, **options: Any) -> bool:
    lock_object = client.lock(lock, **options)
    room = {name: getattr(lock_object, name, 1) for name in ("weight", "capacity")}
    client.log.write("want", lock=lock, **room)
    asked = now()
    try:
        if not await lock_object.aacquire():
            client.log.write("refused", lock=lock, asked=asked)
            return False
    except Exception as error:
        client.trouble("acquire", error, lock)
        raise
    client.held[lock] = lock_object
    known = {"token": lock_object.token, "fence": lock_object.fence_token}
    client.log.write("held", lock=lock, asked=asked, **known, **room)
    return True


async def _release(client: Client, lock: str) -> None:
    held = client.held.pop(lock)
    client.log.write("release", lock=lock, token=held.token)
    try:
        await held.arelease()
    except Exception as error:
        client.trouble("release", error, lock)
        raise
    client.log.write("released", lock=lock, token=held.token)
