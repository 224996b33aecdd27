"""Replies that are lost, and requests, one at a time; and replies that come late, when most of the
lease is over, or all of it.

The clients are sync and async, with connections that retry by themselves, as those of
``redis.Redis()`` do, and that don't, as those of cache backends; so a script may run twice.
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
from ..proxy import Command, Deed, Proxy, named, runs
from ..scenario import ORDER, Run, Setting, scenario
from ..work import User

Matches = Callable[[Command], bool]

LEASE = 30.0  # seconds: nothing comes free by itself while a run lasts

GIVEN_BACK = 2.0
"""Seconds within which nobody may hold any more what an error kept from being released."""

UNTIL_FREE = 4.0  # seconds: a turn that is lost may be followed by another one

ADDED = 2.0  # seconds

KINDS: tuple[dict[str, Any], ...] = (
    {"kind": "lock"},
    {"kind": "lock", "reentrant": True},
    {"kind": "semaphore", "limit": 2},
    {"kind": "write_lock"},
)
READ: dict[str, Any] = {"kind": "read_lock"}  # for which nobody waits where all have it


# What is lost


def acquires(command: Command) -> bool:
    """Asks for a lock, or fetches a turn."""
    return (runs(ACQUIRE)(command) and not gives_up(command)) or named("BLPOP")(command)


def releases(command: Command) -> bool:
    return runs(RELEASE)(command) and not gives_up(command)


def gives_up(command: Command) -> bool:
    """Asks for the last time, or leaves the queue."""
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
    """Let four clients use a lock until so many replies are lost, and a quarter as many
    requests."""
    node, crew = setting.node(), setting.crew()
    know_scripts(node)
    lost: list[Deed] = []

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
    """Half of what matches, and never more than two in a row."""
    row = 0

    def choose(command: Command) -> bool:
        nonlocal row
        if not matches(command):
            return False
        row = row + 1 if row < 2 and random.random() < 0.5 else 0
        return row > 0

    return choose


def know_scripts(node: Node) -> None:
    """Or what is lost is that a script is not known."""
    for script in (ACQUIRE, RELEASE, RENEW, FENCE, FORCE):
        node.ask("SCRIPT", "LOAD", script.source)


WHO = "sync", "sync that retries", "async", "async that retries"


TURNS = {"how": "take_turns"}

FACTS = {
    **{"runs": 25, "short": 1, "faults": 50, "operations": 10},
    **{"free_within": UNTIL_FREE, "errors": ("ConnectionError",)},
}

for _what, _args, _facts in (
    # A client whose replies are lost again and again may send no heartbeat for so long that it
    # loses its place in the queue.
    ("acquire", {"matches": acquires, **TURNS}, {"wake_within": UNTIL_FREE, "may_fail": (ORDER,)}),
    ("release", {"matches": releases, **TURNS}, {}),
    (
        "renewal",
        {"matches": runs(RENEW), "how": "renew_it", "lease": 2},
        {"operations": 2, "free_within": None},
    ),
    # A client that gave up without a reply, and so asks again, may acquire the lock after all, but
    # not from its old place.
    (
        "a waiter gives up",
        {"matches": gives_up, "how": "wait_shortly", "kinds": KINDS},
        {
            **{"short": 6, "operations": 5, "may_fail": (ORDER,)},
            **{"errors": ("ConnectionError", "TimeoutError")},
        },
    ),
):
    scenario(6, f"Request or reply lost: {_what}", args=_args, **FACTS | _facts)(lose)


# What the clients do


async def take_turns(user: User) -> None:
    if await user.acquire():
        if user.held.reentrant:
            await user.do(user.held, "acquire")
            await user.do(user.held, "release")
        await user.sleep(0, 0.004)
        await user.release()


async def renew_it(user: User) -> None:
    """By hand, or as the renewal does."""
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


async def wait_shortly(user: User) -> None:
    if await user.acquire(longest=user.client.random.uniform(0.01, 0.1)):
        await user.sleep(0.02, 0.08)
        await user.release()


def use(client: own.Client, lock: str, how: str, **options: Any) -> None:
    """Do that again and again, until there is another order."""
    if "retries" in client.who:
        override_settings(
            REDISLOCK_CLIENT=f"{__name__}.retrying",
            REDISLOCK_ASYNC_CLIENT=f"{__name__}.async_retrying",
        ).enable()
    user = User(client, lock, options)

    async def go_on() -> None:
        while not client.is_told():
            await globals()[how](user)
            await user.sleep(0, 0.002)
        await user.sleep(GIVEN_BACK, GIVEN_BACK)  # its loop has to last until all is given back

    user.run(go_on())


def _retrying(make: Any, retry: type) -> Any:
    url = settings.CACHES["default"]["LOCATION"]
    # redis-py 5 has to be told of which errors, too.
    again = {"retry": retry(ConstantBackoff(0.005), 3), "retry_on_error": [redis.ConnectionError]}
    return make.from_url(url, **again)


retrying = partial(_retrying, redis.Redis, Retry)
async_retrying = partial(_retrying, redis.asyncio.Redis, AsyncRetry)


LEASES = 1.0, 1.5

LATE = 0.5, 1.5  # leases that a reply is late

A_LITTLE_LATE = 0.1, 0.25
"""Leases: a renewal that the lock asks for by itself waits for a third of one."""

LANES = 6


@scenario(6, "Late replies", runs=60, short=4, operations=2, may_fail=(ORDER,))
def hold_up(setting: Setting) -> None:
    """A client that learns of its grant when that is over is queued last again.

    A reply to `acquire`, a turn, or a renewal is late, and from then on the lease is not
    renewed. Its client looks whether it holds the lock, for as long as it is told so; another, to
    which all comes in time, wants it."""
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
    """The clients of a run, and the ways in which a reply to `late` is late."""

    run: Run
    proxy: Proxy
    late: Client
    other: Client
    before: Client
    lease: float

    def delay(self, matches: Matches, leases: tuple[float, float] | None = None) -> Deed:
        seconds = self.lease * self.run.random.uniform(*(leases or LATE))
        return self.proxy.delay_reply(matches, seconds)

    def seize(self) -> None:
        what = f"{__name__}:take_as_soon_as_it_is_free"
        self.other.start(what, lock=self.run.lock, timeout=self.lease)
        self.other.wait_for("refused")

    def acquisition(self) -> Deed:
        delay = self.delay(runs(ACQUIRE))
        self.late.start("acquire", lock=self.run.lock, timeout=self.lease, auto_renewal=False)
        wait_until(delay.has_begun, interval=0.001)
        self.seize()
        assert self.late.answer() is True
        return delay

    def grant(self) -> Deed:
        self.before.ask("acquire", lock=self.run.lock)
        delay = self.delay(named("BLPOP"))
        self.late.start("acquire", lock=self.run.lock, timeout=self.lease, auto_renewal=False)
        self.late.wait_for("queued")
        self.seize()
        self.before.ask("release", lock=self.run.lock)
        assert self.late.answer() is True
        return delay

    def extension(self) -> Deed:
        self.late.ask("acquire", lock=self.run.lock, timeout=self.lease, auto_renewal=False)
        delay = self.delay(runs(RENEW))
        by = self.run.random.choice(("extend", "reacquire"))
        self.late.start(f"{__name__}:renew", lock=self.run.lock, by=by)
        wait_until(delay.has_begun, interval=0.001)
        self.seize()
        self.late.answer()
        return delay

    def renewal(self) -> Deed:
        self.late.ask("acquire", lock=self.run.lock, timeout=self.lease)
        self.seize()
        delay = self.delay(runs(RENEW), A_LITTLE_LATE)
        wait_until(delay.is_done, interval=0.001)
        self.proxy.freeze()
        return delay


WAYS = Scene.acquisition, Scene.grant, Scene.extension, Scene.renewal


# What clients do


def renew(client: own.Client, lock: str, by: str) -> None:
    held = client.held[lock]
    with suppress(LockLost):
        held.extend(held.timeout) if by == "extend" else held.reacquire()


def take_as_soon_as_it_is_free(client: own.Client, lock: str, **options: Any) -> None:
    """Who stood in the queue would see it only half a second later."""
    while not own.acquire(client, lock, how={"blocking": False}, **options):
        time.sleep(0.01)
    own.write(client, lock)
    time.sleep(client.random.uniform(0.1, 0.3))
    own.release(client, lock)


def believe(client: own.Client, lock: str) -> None:
    """Look, until it is lost."""
    while own.check(client, lock):
        time.sleep(0.01)
