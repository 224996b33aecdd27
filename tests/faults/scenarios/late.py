"""Replies that come late: when most of the lease of which they tell is over, or all of it."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django_redislock import LockLost
from django_redislock.lua import ACQUIRE, RENEW
from tests.tools import wait_until

from .. import client as own
from ..crew import Client
from ..proxy import Deed, Proxy, named, runs
from ..scenario import ORDER, Run, Setting, scenario
from .replies import know_scripts

LEASES = 1.0, 1.5

LATE = 0.5, 1.5  # leases that a reply is late

A_LITTLE_LATE = 0.1, 0.25
"""Leases: a renewal that the lock asks for by itself waits for a third of one."""

LANES = 6


@scenario(6, "Replies that come late", runs=60, short=4, operations=2, may_fail=(ORDER,))
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
            lease = run.random.uniform(*LEASES)
            delay = WAYS[run.number % len(WAYS)](run, lease, proxy, late, other, before)
            assert delay.is_done()
            run.fault("late reply", seconds=delay.seconds)
            late.ask(f"{__name__}:believe", lock=run.lock)
            assert other.answer() is None

    setting.each(body, lanes=LANES)


# Which reply is late


def acquisition(
    run: Run, lease: float, proxy: Proxy, late: Client, other: Client, before: Client
) -> Deed:
    delay = proxy.delay_reply(runs(ACQUIRE), lease * run.random.uniform(*LATE))
    late.start("acquire", lock=run.lock, timeout=lease, auto_renewal=False)
    wait_until(delay.has_begun, interval=0.001)
    seize(run, other, lease)
    assert late.answer() is True
    return delay


def turn(
    run: Run, lease: float, proxy: Proxy, late: Client, other: Client, before: Client
) -> Deed:
    before.ask("acquire", lock=run.lock)
    delay = proxy.delay_reply(named("BLPOP"), lease * run.random.uniform(*LATE))
    late.start("acquire", lock=run.lock, timeout=lease, auto_renewal=False)
    late.wait_for("queued")
    seize(run, other, lease)
    before.ask("release", lock=run.lock)
    assert late.answer() is True
    return delay


def extension(
    run: Run, lease: float, proxy: Proxy, late: Client, other: Client, before: Client
) -> Deed:
    late.ask("acquire", lock=run.lock, timeout=lease, auto_renewal=False)
    delay = proxy.delay_reply(runs(RENEW), lease * run.random.uniform(*LATE))
    late.start(f"{__name__}:renew", lock=run.lock, by=run.random.choice(("extend", "reacquire")))
    wait_until(delay.has_begun, interval=0.001)
    seize(run, other, lease)
    late.answer()
    return delay


def renewal(
    run: Run, lease: float, proxy: Proxy, late: Client, other: Client, before: Client
) -> Deed:
    late.ask("acquire", lock=run.lock, timeout=lease)
    seize(run, other, lease)
    delay = proxy.delay_reply(runs(RENEW), lease * run.random.uniform(*A_LITTLE_LATE))
    wait_until(delay.is_done, interval=0.001)
    proxy.freeze()
    return delay


WAYS: tuple[Callable[..., Deed], ...] = (acquisition, turn, extension, renewal)


def seize(run: Run, other: Client, lease: float) -> None:
    other.start(f"{__name__}:take_as_soon_as_it_is_free", lock=run.lock, timeout=lease)
    other.wait_for("refused")


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
