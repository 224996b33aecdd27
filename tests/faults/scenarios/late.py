"""Replies that come late: when most of the lease of which they tell is over, or all of it."""

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from django_redislock import LockLost
from django_redislock.lua import ACQUIRE, RENEW
from tests.tools import wait_until

from .. import client as own
from ..crew import Client
from ..proxy import Deed, Proxy, named, runs
from ..scenario import ORDER, Run, Setting, scenario
from .replies import Matches, know_scripts

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

    def delay(self, matches: Matches, leases: tuple[float, float] = LATE) -> Deed:
        return self.proxy.delay_reply(matches, self.lease * self.run.random.uniform(*leases))

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
