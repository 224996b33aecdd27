"""Single replies or requests that are lost, and replies that arrive late in the lease or after it.

The clients are sync and async. Some connections retry, as with ``redis.Redis()``, so a script may
run twice; others do not retry, as with cache backends.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
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

from django_redislock import LockLost
from django_redislock.lua import ACQUIRE, FENCE, FORCE, RELEASE, RENEW
from tests.servers import Node
from tests.tools import wait_until

from .. import client as own
from ..crew import Client, finish_all
from ..proxy import Command, Proxy, ReplyFault, named, runs
from ..scenario import ORDER, Run, Setting, scenario
from ..work import User

Matches = Callable[[Command], bool]

LEASE = 30.0  # seconds; no lease expires during a run

GIVEN_BACK = 2.0
"""Limit in seconds until a lock is free whose release failed with an error."""

UNTIL_FREE = 4.0  # seconds; a lost grant may be followed by another one

ADDED = 2.0  # seconds

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


def lose(
    setting: Setting,
    matches: Matches,
    how: str,
    lease: float = LEASE,
    kinds: Sequence[dict[str, Any]] = (*KINDS, READ),
) -> None:
    """Let four clients use a lock until the given number of replies and a quarter as many requests
    are lost."""
    node, crew = setting.node(), setting.crew()
    know_scripts(node)
    lost: list[ReplyFault] = []

    def body(run: Run) -> None:
        with Proxy(*node.address) as proxy:
            choose = sometimes(matches, run.random)
            drops = [
                proxy.drop_reply(choose, times=40),
                proxy.drop_reply(choose, times=10, before=True),
            ]
            kind = run.random.choice(kinds)
            clients = [run.client(crew, who, proxy.url) for who in WHO]
            for client in clients:
                client.start(f"{__name__}:use", lock=run.lock, how=how, timeout=lease, **kind)
            wait_until(lambda: all(drop.is_done() for drop in drops), timeout=120)
            finish_all(clients)
            if info := run.info(node):
                run.log.write("phantom", lock=run.lock, found=str(info))
            lost.extend(drops)
            for drop in drops:
                for _ in range(drop.done):
                    run.fault("lost request" if drop.before else "lost reply")

    setting.each(body, lanes=4)
    replies, requests = (
        sum(each.done for each in lost if each.before is b) for b in (False, True)
    )
    setting.notes.append(f"{replies:,} replies and {requests:,} requests were lost")


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


WHO = "sync", "sync that retries", "async", "async that retries"


TURNS = {"how": "take_turns"}

FACTS = {
    **{"runs": 25, "short": 1, "faults": 50, "operations": 10},
    **{"free_within": UNTIL_FREE, "errors": ("ConnectionError",)},
}

for _what, _args, _facts in (
    # A client that loses several replies may miss heartbeats, and lose its place in the queue.
    # After a lost reply its client waits for a heartbeat, so a run can have few acquisitions.
    (
        "acquire",
        {"matches": acquires, **TURNS},
        {"operations": 4, "wake_within": UNTIL_FREE, "may_fail": (ORDER,)},
    ),
    ("release", {"matches": releases, **TURNS}, {}),
    (
        "renewal",
        {"matches": runs(RENEW), "how": "renew_it", "lease": 2},
        {"operations": 2, "free_within": None},
    ),
    # A client that gave up without a reply asks again. It may acquire the lock, but not from its
    # old place in the queue.
    (
        "a waiter gives up",
        {"matches": gives_up, "how": "wait_briefly", "kinds": KINDS},
        {
            **{"short": 6, "operations": 5, "may_fail": (ORDER,)},
            **{"errors": ("ConnectionError", "TimeoutError")},
        },
    ),
):
    scenario(6, f"Request or reply lost: {_what}", args=_args, **FACTS | _facts)(lose)


# Orders for clients


async def take_turns(user: User) -> None:
    if await user.acquire():
        if user.held.reentrant:
            await user.do(user.held, "acquire")
            await user.do(user.held, "release")
        await user.sleep(0, 0.004)
        await user.release()


async def renew_it(user: User) -> None:
    """Extend the lock by a call, or let the automatic renewal do it."""
    if not await user.acquire():
        return
    if user.client.random.random() < 0.2:
        await user.sleep(0.7, 1.5)
    else:
        for step in (reacquire, extend) * 8:
            try:
                await step(user)
            except Exception as error:
                user.client.trouble("renew", error, user.name, token=user.held.token)
    await user.release()


async def reacquire(user: User) -> None:
    await user.do(user.held, "reacquire")


async def extend(user: User) -> None:
    before = await user.seconds_left()
    await user.do(user.held, "extend", ADDED)
    after = await user.seconds_left()
    if after > max(before, user.held.timeout) + ADDED:
        user.log("double", before=before, after=after)


async def wait_briefly(user: User) -> None:
    if await user.acquire(longest=user.client.random.uniform(0.01, 0.1)):
        await user.sleep(0.02, 0.08)
        await user.release()


def use(client: own.Client, lock: str, how: str, **options: Any) -> None:
    """Call the function `how` repeatedly, until there is another order."""
    if "retries" in client.who:
        override_settings(
            REDISLOCK_CLIENT=f"{__name__}.retrying",
            REDISLOCK_ASYNC_CLIENT=f"{__name__}.async_retrying",
        ).enable()
    user = User(client, lock, options)

    async def repeat() -> None:
        while not client.has_order():
            await globals()[how](user)
            await user.sleep(0, 0.002)
        await user.sleep(GIVEN_BACK, GIVEN_BACK)  # the loop must run until all locks are released

    user.run(repeat())


def _retrying(make: Any, retry: type) -> Any:
    url = settings.CACHES["default"]["LOCATION"]
    # redis-py 5 also needs the types of errors.
    again = {"retry": retry(ConstantBackoff(0.005), 3), "retry_on_error": [redis.ConnectionError]}
    return make.from_url(url, **again)


retrying = partial(_retrying, redis.Redis, Retry)
async_retrying = partial(_retrying, redis.asyncio.Redis, AsyncRetry)


LEASES = 1.0, 1.5

LATE = 0.5, 1.5  # delay of a reply, in leases

A_LITTLE_LATE = 0.1, 0.25
"""Delay of a reply in leases, less than the third of a lease after which the lock is renewed."""

TRIES = 20
"""A client on a busy machine may lose its lock before a renewal. Then it acquires it again."""

LANES = 6


@scenario(6, "Late replies", runs=60, short=4, operations=2, may_fail=(ORDER,))
def hold_up(setting: Setting) -> None:
    """A client that learns of its grant after the lease has expired is queued last again.

    The reply to `acquire`, a grant, or the reply to a renewal is late, and the lease is no longer
    renewed. The late client checks the lock until it is lost. Another client, whose replies are
    not late, waits for the lock."""
    node, crew = setting.node(), setting.crew()
    know_scripts(node)

    def body(run: Run) -> None:
        with Proxy(*node.address) as proxy:
            late = run.client(crew, "late", proxy.url)
            other, before = run.clients(crew, node, "other", "before")
            scene = Scene(run, proxy, late, other, before, run.random.uniform(*LEASES))
            delay = WAYS[run.number % len(WAYS)](scene)
            assert delay.is_done()
            run.fault("late reply", seconds=delay.seconds)
            late.ask(f"{__name__}:believe", lock=run.lock)
            assert other.answer() is None

    setting.each(body, lanes=LANES)


@dataclass
class Scene:
    """The clients of a run, and the methods that delay a reply to `late`."""

    run: Run
    proxy: Proxy
    late: Client
    other: Client
    before: Client
    lease: float

    def delay(self, matches: Matches, leases: tuple[float, float] | None = None) -> ReplyFault:
        seconds = self.lease * self.run.random.uniform(*(leases or LATE))
        return self.proxy.delay_reply(matches, seconds)

    def seize(self) -> None:
        what = f"{__name__}:take_as_soon_as_it_is_free"
        self.other.start(what, lock=self.run.lock, timeout=self.lease)
        wait_until(lambda: self.other.last("refused", "held"), interval=0.001)

    def acquisition(self) -> ReplyFault:
        delay = self.delay(runs(ACQUIRE))
        self.late.start("acquire", lock=self.run.lock, timeout=self.lease, auto_renewal=False)
        wait_until(delay.has_begun, interval=0.001)
        self.seize()
        assert self.late.answer() is True
        return delay

    def grant(self) -> ReplyFault:
        self.before.ask("acquire", lock=self.run.lock)
        delay = self.delay(named("BLPOP"))
        self.late.start("acquire", lock=self.run.lock, timeout=self.lease, auto_renewal=False)
        self.late.wait_for("queued")
        self.seize()
        self.before.ask("release", lock=self.run.lock)
        assert self.late.answer() is True
        return delay

    def extension(self) -> ReplyFault:
        self.late.ask("acquire", lock=self.run.lock, timeout=self.lease, auto_renewal=False)
        delay = self.delay(runs(RENEW))
        by = self.run.random.choice(("extend", "reacquire"))
        self.late.start(f"{__name__}:renew", lock=self.run.lock, by=by)
        wait_until(delay.has_begun, interval=0.001)
        self.seize()
        self.late.answer()
        return delay

    def renewal(self) -> ReplyFault:
        delay = self.delay(runs(RENEW), A_LITTLE_LATE)
        for _ in range(TRIES):
            assert self.late.ask("acquire", lock=self.run.lock, timeout=self.lease) is True
            wait_until(lambda: delay.is_done() or self._has_lost(), interval=0.001)
            if delay.is_done():
                break
            self.late.ask(f"{__name__}:believe", lock=self.run.lock)
        self.proxy.freeze()
        self.seize()
        return delay

    def _has_lost(self) -> bool:
        """Return whether `late` lost the lock after it acquired it last."""
        event = self.late.last("held", "lost")
        return event is not None and event["what"] == "lost"


WAYS = Scene.acquisition, Scene.grant, Scene.extension, Scene.renewal


# Orders for clients


def renew(client: own.Client, lock: str, by: str) -> None:
    held = client.held[lock]
    with suppress(LockLost):
        held.extend(held.timeout) if by == "extend" else held.reacquire()


def take_as_soon_as_it_is_free(client: own.Client, lock: str, **options: Any) -> None:
    """Poll for the lock, because a waiter would notice the expiry half a second later."""
    while not own.acquire(client, lock, how={"blocking": False}, **options):
        time.sleep(0.01)
    own.write(client, lock)
    time.sleep(client.random.uniform(0.1, 0.3))
    own.release(client, lock)


def believe(client: own.Client, lock: str) -> None:
    """Check the lock until it is lost."""
    while own.check(client, lock):
        time.sleep(0.01)
