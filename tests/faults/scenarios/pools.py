"""The program has taken all connections of the pool of a client that locks use, too."""

import asyncio
import threading
from typing import Any

import redis.asyncio
from django.conf import settings
from django.test import override_settings

from tests.tools import wait_until

from ..client import Client, write
from ..scenario import Run, Setting, scenario
from ..work import User
from .killed import GRACE

LEASE = 2.5
USERS = 8
TURNS = 2  # acquisitions by each user except the first

SIZES = 1, 2, 3

POOLS = {
    "process": (redis.ConnectionPool, redis.BlockingConnectionPool),
    "async process": (redis.asyncio.ConnectionPool, redis.asyncio.BlockingConnectionPool),
}

FACTS = {
    "runs": 16,
    "short": 2,
    "operations": 1 + (USERS - 1) * TURNS,
    "free_within": GRACE,
    "at_once": True,
}


@scenario(16, "Connection pool exhausted, waiting tasks", args={"who": "async process"}, **FACTS)
@scenario(16, "Connection pool exhausted, waiting threads", **FACTS)
def exhaust(setting: Setting, who: str = "process") -> None:
    """One user holds the lock for longer than its lease, and all others of its process wait."""
    node, crew = setting.node(), setting.crew()

    def body(run: Run) -> None:
        client = run.client(crew, who, node.url)
        pool, size = run.random.randrange(len(POOLS[who])), run.random.choice(SIZES)
        client.start(f"{__name__}:share", lock=run.lock, pool=pool, size=size, timeout=LEASE)

        def all_wait() -> bool:
            info = run.info(node)
            return info is not None and info.waiters == USERS - 1

        wait_until(all_wait, timeout=20)
        run.fault("pool exhausted")
        run.moment(LEASE * 1.5, shortest=LEASE)
        assert client.finish() == 1 + (USERS - 1) * TURNS

    setting.each(body, lanes=4)


# Orders for clients

clients: list[Any] = []
"""The client of this process."""


def the_client() -> Any:
    """Be the callable of ``REDISLOCK_CLIENT`` and of ``REDISLOCK_ASYNC_CLIENT``."""
    return clients[0]


def share(client: Client, lock: str, pool: int, size: int, **options: Any) -> int:
    """Let many users in one process use the lock, and return how often it was held."""
    first, *others = (
        User(_part_of(client, number), lock, options) for number in range(1, USERS + 1)
    )
    pool_class = POOLS["async process" if first.is_async else "process"][pool]
    library: Any = redis.asyncio if first.is_async else redis
    url = settings.CACHES["default"]["LOCATION"]
    clients[:] = [library.Redis(connection_pool=pool_class.from_url(url, max_connections=size))]
    name = f"{__name__}.the_client"
    with override_settings(REDISLOCK_CLIENT=name, REDISLOCK_ASYNC_CLIENT=name):
        first.run(_keep(first, others, size))
    return sum(user.times for user in (first, *others))


async def _keep(first: User, others: list[User], size: int) -> None:
    """Take all connections of the pool, and hold the lock until there is another order."""
    subscribers = [the_client().pubsub() for _ in range(size)]
    for each in subscribers:
        subscribing = each.subscribe("program")
        if first.is_async:
            await subscribing
    assert await first.acquire()
    begun = [_begin(other) for other in others]
    while not first.client.has_order():
        await first.sleep(0.01, 0.01)
    first.log("free")
    await first.release()
    for each in begun:
        if isinstance(each, threading.Thread):
            each.join()
        else:
            await each


def _begin(user: User) -> "threading.Thread | asyncio.Task[None]":
    if user.is_async:
        return asyncio.create_task(_take_turns(user))
    thread = threading.Thread(target=user.run, args=(_take_turns(user),))
    thread.start()
    return thread


async def _take_turns(user: User) -> None:
    for _ in range(TURNS):
        assert await user.acquire()
        write(user.client, user.name)
        await user.sleep(0, 0.02)
        await user.release()


def _part_of(client: Client, number: int) -> Client:
    order = {"who": f"{client.who} user {number}", "folder": str(client.folder), "seed": number}
    return Client(order, client.orders)
