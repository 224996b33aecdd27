"""Connection pools that have fewer connections than waiting threads or tasks."""

import asyncio
import threading
from typing import Any

from tests.tools import wait_until

from ..client import Client, write
from ..scenario import Run, Setting, scenario
from ..work import User
from .killed import GRACE

LEASE = 2.5
USERS = 8
TURNS = 2  # acquisitions by each user except the first

POOLS: tuple[dict[str, Any], ...] = (
    {"max_connections": 1},
    {"max_connections": 2},
    {"max_connections": 3},
    {"max_connections": 2, "pool_class": "redis.BlockingConnectionPool"},
    {"max_connections": 3, "pool_class": "redis.BlockingConnectionPool", "timeout": 5},
)


FACTS = {
    "runs": 16,
    "short": 2,
    "operations": 1 + (USERS - 1) * TURNS,
    "free_within": GRACE,
    "at_once": True,
}


@scenario(16, "Connection pool exhausted by waiting tasks", args={"who": "async process"}, **FACTS)
@scenario(16, "Connection pool exhausted by waiting threads", **FACTS)
def exhaust(setting: Setting, who: str = "process") -> None:
    """One user holds the lock for longer than its lease, and all others of its process wait."""
    node, crew = setting.node(), setting.crew()

    def body(run: Run) -> None:
        client = run.client(crew, who, node.url, **run.random.choice(POOLS))
        client.start(f"{__name__}:share", lock=run.lock, timeout=LEASE)

        def all_wait() -> bool:
            info = run.info(node)
            return info is not None and info.waiters == USERS - 1

        wait_until(all_wait, timeout=20)
        run.fault("pool exhausted")
        run.moment(LEASE * 1.5, shortest=LEASE)
        assert client.finish() == 1 + (USERS - 1) * TURNS

    setting.each(body, lanes=4)


# Orders for clients


def share(client: Client, lock: str, **options: Any) -> int:
    """Let many users in one process use the lock, and return how often it was held."""
    first, *others = (
        User(_part_of(client, number), lock, options) for number in range(1, USERS + 1)
    )
    first.run(_keep(first, others))
    return sum(user.times for user in (first, *others))


async def _keep(first: User, others: list[User]) -> None:
    """Hold the lock until there is another order."""
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
