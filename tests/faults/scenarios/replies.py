"""Single replies or requests that are lost.

The clients are sync and async. Some connections retry, as with ``redis.Redis()``, so a script may
run twice; others do not retry, as with cache backends.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import redis
import redis.asyncio
from django.conf import settings
from django.test import override_settings
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from django_redislock import locks
from django_redislock.lua import ACQUIRE, FENCE, FORCE, RELEASE, RENEW
from tests.servers import Node
from tests.tools import wait_until

from .. import client as own
from ..crew import finish_all
from ..proxy import Command, Proxy, named, runs
from ..scenario import ORDER, Run, Setting, scenario

Matches = Callable[[Command], bool]

REPLIES, REQUESTS = 40, 10  # lost in each run

LEASE = 30.0  # seconds; no lease expires during a run
RENEWED_LEASE = 2.0

GIVEN_BACK = 2.0
"""Limit in seconds until a lock is free whose release failed with an error."""

UNTIL_FREE = 4.0  # seconds; a lost grant may be followed by another one

ADDED = 2.0  # seconds

WHO = "sync", "sync that retries", "async", "async that retries"

KINDS: tuple[dict[str, Any], ...] = (
    {"kind": "lock"},
    {"kind": "lock", "reentrant": True},
    {"kind": "semaphore", "limit": 2},
    {"kind": "write_lock"},
)
READ: dict[str, Any] = {"kind": "read_lock"}  # without waiters if all clients share it


# Messages to lose


def acquires(command: Command) -> bool:
    """Match a request for a lock, or the wait for a grant."""
    return (runs(ACQUIRE)(command) and not gives_up(command)) or named("BLPOP")(command)


def releases(command: Command) -> bool:
    return runs(RELEASE)(command) and not gives_up(command)


def gives_up(command: Command) -> bool:
    """Match the last request of a waiter, or its withdrawal from the queue."""
    if runs(ACQUIRE)(command):
        return command[11].split(b" ")[5] == b"0"  # `heartbeat`
    return runs(RELEASE)(command) and command[12] == b"0"  # not `believed`


FACTS: dict[str, Any] = {
    "runs": 25,
    "short": 1,
    "faults": REPLIES + REQUESTS,
    "operations": 10,
    "free_within": UNTIL_FREE,
    "errors": ("ConnectionError",),
}

# A client that loses several replies may miss heartbeats, and lose its place in the queue. After a
# lost reply its client waits for a heartbeat, so a run can have few acquisitions.
ACQUIRING = FACTS | {"operations": 4, "wake_within": UNTIL_FREE, "may_fail": (ORDER,)}

RENEWING = FACTS | {"operations": 2, "free_within": None}

# A client that gave up without a reply asks again. It may acquire the lock, but not from its old
# place in the queue.
GIVING_UP = FACTS | {
    "short": 6,
    "operations": 5,
    "may_fail": (ORDER,),
    "errors": ("ConnectionError", "TimeoutError"),
}


@scenario(6, "Request or reply lost: a waiter gives up", args={"part": "give up"}, **GIVING_UP)
@scenario(6, "Request or reply lost: renewal", args={"part": "renew"}, **RENEWING)
@scenario(6, "Request or reply lost: release", args={"part": "release"}, **FACTS)
@scenario(6, "Request or reply lost: acquire", args={"part": "acquire"}, **ACQUIRING)
def lose(setting: Setting, part: str) -> None:
    """Four clients use a lock until the given number of replies and requests are lost."""
    node, crew = setting.node(), setting.crew()
    know_scripts(node)
    matches = {
        "acquire": acquires,
        "release": releases,
        "renew": runs(RENEW),
        "give up": gives_up,
    }[part]
    lease = RENEWED_LEASE if part == "renew" else LEASE
    kinds = KINDS if part == "give up" else (*KINDS, READ)

    def body(run: Run) -> None:
        with Proxy(*node.address) as proxy:
            choose = sometimes(matches, run.random)
            replies = proxy.drop_reply(choose, times=REPLIES)
            requests = proxy.drop_reply(choose, times=REQUESTS, before=True)
            kind = run.random.choice(kinds)
            clients = [run.client(crew, who, proxy.url) for who in WHO]
            for client in clients:
                client.start(f"{__name__}:use", lock=run.lock, part=part, timeout=lease, **kind)
            wait_until(lambda: replies.is_done() and requests.is_done(), timeout=120)
            finish_all(clients)
            if info := run.info(node):
                run.log.write("phantom", lock=run.lock, found=str(info))
            for _ in range(REPLIES):
                run.fault("lost reply")
            for _ in range(REQUESTS):
                run.fault("lost request")

    setting.each(body, lanes=4)


def sometimes(matches: Matches, random: Random) -> Matches:
    """Return a function that matches half of the commands, and at most two in a row."""
    row = 0

    def choose(command: Command) -> bool:
        nonlocal row
        if not matches(command):
            return False
        row = row + 1 if row < 2 and random.random() < 0.5 else 0
        return row > 0

    return choose


def know_scripts(node: Node) -> None:
    """Load the scripts, so that no lost reply is a NOSCRIPT error."""
    for script in (ACQUIRE, RELEASE, RENEW, FENCE, FORCE):
        node.ask("SCRIPT", "LOAD", script.source)


# Orders for clients


def use(client: own.Client, lock: str, part: str, **options: Any) -> None:
    """Use the lock repeatedly, until there is another order."""
    if "retries" in client.who:
        override_settings(
            REDISLOCK_CLIENT=f"{__name__}.retrying",
            REDISLOCK_ASYNC_CLIENT=f"{__name__}.async_retrying",
        ).enable()
    is_async = "async" in client.who
    use_once = {"renew": extend_it, "give up": wait_briefly}.get(part, take_turns)

    async def repeat() -> None:
        while not client.has_order():
            try:
                await use_once(client, lock, is_async, **options)
            except redis.RedisError:  # it is logged
                client.log.write("free", lock=lock)
            await own.pause(client.random.uniform(0, 0.002), is_async)
        await own.pause(GIVEN_BACK, is_async)  # the loop must run until all locks are released

    own.run(repeat(), is_async)


async def take_turns(client: own.Client, lock: str, is_async: bool, **options: Any) -> None:
    await own.aacquire(client, lock, is_async=is_async, **options)
    held = client.held[lock]
    if held.reentrant:
        await own.do(held, "acquire", is_async=is_async)
        await own.do(held, "release", is_async=is_async)
    await own.pause(client.random.uniform(0, 0.004), is_async)
    await own.arelease(client, lock, is_async)


async def extend_it(client: own.Client, lock: str, is_async: bool, **options: Any) -> None:
    """Extend the lock by calls, or let the automatic renewal do it."""
    await own.aacquire(client, lock, is_async=is_async, **options)
    held = client.held[lock]
    if client.random.random() < 0.2:
        await own.pause(client.random.uniform(0.7, 1.5), is_async)
    else:
        for step in (reacquire, extend) * 8:
            try:
                await step(client, held, is_async)
            except redis.RedisError as error:
                client.trouble("renew", error, lock, token=held.token)
    await own.arelease(client, lock, is_async)


async def reacquire(client: own.Client, held: Any, is_async: bool) -> None:
    await own.do(held, "reacquire", is_async=is_async)


async def extend(client: own.Client, held: Any, is_async: bool) -> None:
    before = await seconds_left(held, is_async)
    await own.do(held, "extend", ADDED, is_async=is_async)
    after = await seconds_left(held, is_async)
    if after > max(before, held.timeout) + ADDED:
        client.log.write("double", lock=held.name, before=before, after=after)


async def seconds_left(held: Any, is_async: bool) -> float:
    info = await own.do(locks, "get", held.name, is_async=is_async)
    return info.ttl or 0 if info else 0


async def wait_briefly(client: own.Client, lock: str, is_async: bool, **options: Any) -> None:
    how = {"blocking_timeout": client.random.uniform(0.01, 0.1)}
    if await own.aacquire(client, lock, how=how, is_async=is_async, **options):
        await own.pause(client.random.uniform(0.02, 0.08), is_async)
        await own.arelease(client, lock, is_async)


def _retrying(make: Any, retry: type) -> Any:
    url = settings.CACHES["default"]["LOCATION"]
    # redis-py 5 also needs the types of errors.
    again = {"retry": retry(ConstantBackoff(0.005), 3), "retry_on_error": [redis.ConnectionError]}
    return make.from_url(url, **again)


retrying = partial(_retrying, redis.Redis, Retry)
async_retrying = partial(_retrying, redis.asyncio.Redis, AsyncRetry)
