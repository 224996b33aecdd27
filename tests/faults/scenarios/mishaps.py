"""Server faults while a keeper holds a lock and two clients wait for it: the server restarts or
loses its data, or wall clocks are changed. Leases use the monotonic clock, which cannot be set.
"""

import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django_redislock.clock import now
from django_redislock.engine import protocol, runners
from tests.servers import Node
from tests.servers.clock import Clock

from .. import client as own
from ..crew import KEYS, Client, Crew
from ..scenario import EXCLUSION, ORDER, Run, Setting, Shared, scenario
from .killed import GRACE

LEASES = 2.5, 5.0  # seconds; long enough for a busy machine

LANES = 4

CLOCKED = "valkey-9.1", "redis-6.2"  # Debian's Redis hangs with libfaketime


@dataclass(frozen=True)
class Kept:
    """The clients of one run, and their server."""

    run: Run
    node: Node
    lease: float
    keeper: Client
    others: Sequence[Client]
    clock: Any = None

    def release(self) -> str:
        """Let the keeper release, and return its answer, which may be that the lock was lost."""
        answer = self.keeper.finish()
        return str(answer["error"] if isinstance(answer, dict) else answer)

    def wait_for_both(self, since: float) -> None:
        """Wait until both waiters have held the lock."""
        for other in self.others:
            other.wait_for("released", after=since)

    def seconds_until_lost(self, since: float) -> float:
        """Wait until the keeper learns of its loss, and return the seconds. It renews the lease
        after a third of its length and, if that fails, retries after another tenth."""
        assert self.keeper.answer() == "lost"
        seconds = float(self.keeper.wait_for("lost")["t"]) - since
        limit = self.lease / 3 + min(self.lease / 10, 1) + GRACE
        assert seconds < limit, f"reported after {seconds:.2f} s"
        return seconds


def begin(
    run: Run, crew: Crew, node: Node, *, leases: tuple[float, float] = LEASES, first: str = ""
) -> Kept:
    """Start the clients. Each executes `first`; then the keeper holds the lock and the others
    wait."""
    lease = run.random.uniform(*leases)
    keeper, *others = clients = run.clients(crew, node, "keeper", "one", "other")
    for client in clients if first else ():
        client.ask(first)
    keeper.start("tests.faults.work:keep", lock=run.lock, timeout=lease, between=0.01)
    keeper.wait_for("checked")
    for other in others:
        other.start("loop", lock=run.lock, timeout=lease)
        other.wait_for("queued")
    return Kept(run, node, lease, keeper, others)


def each(
    setting: Setting,
    body: Callable[[Kept], object],
    *,
    leases: tuple[float, float] = LEASES,
    clocks: bool = False,
    **config: Any,
) -> None:
    """Execute `body` for each run, on a server that no other run uses at the same time. With
    `clocks`, each server has its own clock."""
    crew, places = setting.crew(), []
    for number in range(LANES):
        clock = Clock(setting.folder / f"clock {number}") if clocks else None
        makes, environment = (CLOCKED, clock.environment) if clock else ((), {})
        places.append((setting.node(*makes, environment=environment, **config), clock))
    shared = Shared(places)

    def with_a_node(run: Run) -> None:
        with shared.one() as (node, clock):
            body(replace(begin(run, crew, node, leases=leases), clock=clock))

    setting.each(with_a_node, lanes=LANES)


def lose(
    setting: Setting, strike: Callable[[Kept], float], since: str = "that", **config: Any
) -> None:
    """`strike` makes the keeper lose its lock, and returns when the keeper can learn of it."""
    losses: list[float] = []

    def body(kept: Kept) -> None:
        struck = strike(kept)
        kept.wait_for_both(struck)
        losses.append(kept.seconds_until_lost(struck))

    each(setting, body, **config)
    tell_how_soon(setting, losses, since)


def tell_how_soon(setting: Setting, seconds: list[float], since: str) -> None:
    if seconds:
        setting.notes.append(
            f"{len(seconds):,} holders lost their lock; "
            f"the slowest knew {max(seconds):.2f} s after {since}"
        )


TROUBLE = "ConnectionError", "BusyLoadingError", "TimeoutError"

MANY = {"runs": 40, "short": 4, "operations": 3}
FEW = {"runs": 20, "short": 2, "operations": 3}
FACTS = {**MANY, "errors": TROUBLE}

UNTIL_FREE = 3.0  # seconds; waiters keep their places in the queue


@scenario(7, "Server killed and restarted: empty", may_fail=(EXCLUSION,), **FACTS)
def empty(setting: Setting) -> None:
    def strike(kept: Kept) -> float:
        kept.run.log.write("taken", lock=kept.run.lock)
        return restart(kept)

    lose(setting, strike, "the server was back")


def with_a_file(setting: Setting, sync: str) -> int:
    """Restart servers with an append-only file, and return how many holders kept their lock."""
    ends: list[str] = []

    def body(kept: Kept) -> None:
        if sync == "everysec":
            kept.run.log.write("taken", lock=kept.run.lock)
        back = restart(kept)
        kept.keeper.wait_for("kept", after=back)
        ends.append(kept.release())
        kept.wait_for_both(back)

    each(setting, body, leases=(5, 8), appendonly="yes", appendfsync=sync)
    return ends.count("released")


EVERYSEC = "Server killed and restarted: with AOF everysec"


@scenario(7, EVERYSEC, free_within=UNTIL_FREE, may_fail=(EXCLUSION,), **FACTS)
def everysec(setting: Setting) -> None:
    """A killed process loses data that it had not yet written: up to two seconds of it if the disk
    syncs slowly. A machine that fails loses one second more."""
    kept = with_a_file(setting, "everysec")
    setting.notes.append(f"{kept} of {setting.runs} holders kept their lock")


@scenario(7, "Server killed and restarted: with AOF always", free_within=UNTIL_FREE, **FACTS)
def always(setting: Setting) -> None:
    kept = with_a_file(setting, "always")
    assert kept == setting.runs, f"only {kept} kept their lock"


def restart(kept: Kept) -> float:
    """Kill and restart the server, and return the time at which it was available again."""
    run = kept.run
    run.moment(0.5)
    run.fault("server killed")
    run.log.write("away", lock=run.lock)
    kept.node.kill()
    run.moment(0.5)
    kept.node.start()
    return float(run.log.write("back", lock=run.lock)["t"])


@scenario(11, "FLUSHDB", may_fail=(EXCLUSION, ORDER), **MANY)
def flushdb(setting: Setting) -> None:
    def strike(kept: Kept) -> float:
        kept.run.moment(0.5)
        kept.run.log.write("taken", lock=kept.run.lock)
        kept.run.fault("flushed")
        kept.node.ask("FLUSHDB")
        return now()

    lose(setting, strike)


HOUR = 3600.0

LEASE = 2.5


def set_forward(run: Run, clock: Clock, seconds: float) -> float:
    """Change the clock, and return the time of the change."""
    run.fault("clock set", seconds=seconds)
    clock.move(seconds)
    return now()


AHEAD = "The server's clock is set forward, past all leases"


@scenario(12, AHEAD, may_fail=(EXCLUSION, ORDER), **MANY)
def forward(setting: Setting) -> None:
    """All leases and the heartbeats of all waiters expire."""

    def strike(kept: Kept) -> float:
        run = kept.run
        run.moment(0.5)
        run.log.write("taken", lock=run.lock)
        return set_forward(run, kept.clock, run.random.choice((5, 60, HOUR)))

    lose(setting, strike, clocks=True)


BACK_AND_DEAD = "The server's clock is set back by an hour, and the holder dies"


@scenario(
    12,
    BACK_AND_DEAD,
    **FEW | {"faults": 2, "free_within": LEASE * 1.1 + GRACE, "may_fail": (ORDER,)},
    wake_within=10,
)
def back_and_dead(setting: Setting) -> None:
    """The lock stays held for another hour, or until it is force-released."""

    def body(kept: Kept) -> None:
        run, node = kept.run, kept.node
        since = set_forward(run, kept.clock, -HOUR)
        kept.keeper.kill()
        time.sleep(LEASE * 1.1)
        info = run.info(node)
        assert info, "the lock was released without an operator"
        assert HOUR - 60 < info.ttl <= HOUR + LEASE, info.ttl
        run.free()
        with node.client(decode_responses=False) as client:
            [gone] = runners.run(client, protocol.force_release(KEYS.of(run.lock), None))
        assert gone == info.token
        kept.wait_for_both(since)

    each(setting, body, leases=(LEASE, LEASE), clocks=True)
    setting.notes.append("the lock stayed held until it was force-released")


WALL = "The clients' wall clocks are set"


@scenario(12, WALL, faults=10, free_within=GRACE, at_once=True, **FEW)
def clients(setting: Setting) -> None:
    """No lock is lost."""
    clock = Clock(setting.folder / "clock")
    node, crew = setting.node(), setting.crew(**clock.environment)

    def body(run: Run) -> None:
        kept = begin(run, crew, node, first=SLEEP_OTHERWISE)
        for _ in range(10):
            run.moment(0.3)
            set_forward(run, clock, run.random.choice((-HOUR, -5, 5, HOUR)))
        assert kept.release() == "released"
        kept.wait_for_both(now())

    setting.each(body, lanes=LANES)


# Orders for clients

SLEEP_OTHERWISE = f"{__name__}:sleep_otherwise"


def sleep_otherwise(client: own.Client) -> None:
    """Replace `time.sleep`, which fails under libfaketime when the wall clock changes."""
    time.sleep = lambda seconds: select.select([], [], [], seconds) and None
