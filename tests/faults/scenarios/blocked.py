"""The event loop of a holder is blocked."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from django_redislock.engine.timing import HEARTBEAT_SECONDS
from tests.tools import wait_until

from .. import client as own
from ..judge import AT_ONCE
from ..scenario import Run, Setting, scenario
from .killed import until_free

LEASES = 0.4, 1.0
LONG_LEASE = 3.0
SHORT = 0.3  # part of a long lease; renewal after a third of the lease is still in time


FACTS = {
    "runs": 48,
    "short": 4,
    "operations": 2,
    "free_within": until_free(max(LEASES)),
    "wake_within": AT_ONCE + HEARTBEAT_SECONDS,
}


@scenario(13, "A blocked asyncio loop", **FACTS)
@scenario(
    13,
    "A blocked gevent loop",
    args={"hold": "hold_in_greenlet", "module": "tests.faults.gevent_client"},
    **FACTS,
)
def blocked(setting: Setting, hold: str = "hold_in_task", **made: Any) -> None:
    """One greenlet or task holds the lock, and another blocks the loop until the next holder has
    written, or for less than the lease. In the second case the lock is not lost."""
    node, crew, others = setting.node(), setting.crew(**made), setting.crew()

    def body(run: Run) -> None:
        long = run.number % 4 != 0
        lease = run.random.uniform(*LEASES) if long else LONG_LEASE
        holder = run.client(crew, "holder", node.url)
        waiter = run.client(others, "waiter", node.url)
        what = {"lock": run.lock, "seconds": None if long else lease * SHORT, "timeout": lease}
        holder.start(f"{__name__}:{hold}", **what)
        holder.wait_for("stopped")
        waiter.start("loop", lock=run.lock, times=1, timeout=lease)
        found = holder.answer()
        assert found == {"lost": long, "accepted": not long, "notified": long}, found
        assert waiter.answer() == 1

    setting.each(body, lanes=6)


# Orders for clients


def hold_in_greenlet(
    client: own.Client, lock: str, seconds: float | None, **options: Any
) -> dict[str, Any]:
    """Check the lock, let another greenlet block the hub, and then write."""
    from gevent import monkey, sleep, spawn

    notified: list[Any] = []
    assert own.acquire(client, lock, on_lost=notified.append, **options)
    assert own.check(client, lock)
    blocker = spawn(block, client, lock, seconds, monkey.get_original("time", "sleep"))
    sleep(0)
    assert blocker.ready(), "nothing was blocked"
    found = write_late(client, lock)
    if found["lost"]:
        wait_until(lambda: notified)
    else:
        own.release(client, lock)
    return {**found, "notified": bool(notified)}


def hold_in_task(client: own.Client, lock: str, **options: Any) -> dict[str, Any]:
    return asyncio.run(_hold_in_task(client, lock, **options))


async def _hold_in_task(
    client: own.Client, lock: str, seconds: float | None, **options: Any
) -> dict[str, Any]:
    notified = asyncio.Event()
    assert await own.aacquire(client, lock, on_lost=lambda _: notified.set(), **options)
    assert own.check(client, lock)
    asyncio.get_running_loop().call_soon(block, client, lock, seconds, time.sleep)
    await asyncio.sleep(0)
    found = write_late(client, lock)
    if found["lost"]:
        async with asyncio.timeout(10):
            await notified.wait()
    else:
        await own.arelease(client, lock)
    return {**found, "notified": notified.is_set()}


def block(
    client: own.Client, lock: str, seconds: float | None, sleep: Callable[[float], None]
) -> None:
    """Block this thread for `seconds`, or until another client has written if None."""
    client.log.write("stopped", client=client.who)
    if seconds is None:
        fence, register = client.held[lock].fence_token, client.register(lock)
        while register.greatest() <= fence:
            sleep(0.005)
    else:
        sleep(seconds)
    client.log.write("resumed", client=client.who)


def write_late(client: own.Client, lock: str) -> dict[str, bool]:
    """Return whether the holder knows of the loss, and whether the fence accepts its write."""
    held = client.held[lock]
    found = {"lost": held.lost}
    return found | {"accepted": client.register(lock).write(client.who, held.fence_token)}
