"""A keeper holds a lock and two clients wait for it while a fault strikes their server.

`each` runs that once per run; `lose` also expects that the keeper loses the lock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.servers import Node
from tests.servers.clock import Clock

from .crew import Client, Crew
from .scenario import Run, Setting, Shared

GRACE = 2.0  # seconds that a busy machine may take on top of what is promised

LEASES = 2.5, 5.0  # seconds: long enough that a busy machine does not lose them

LANES = 4

CLOCKED = "valkey-9.1", "redis-6.2"  # Debian's Redis hangs with a clock of its own


@dataclass(frozen=True)
class Kept:
    """The clients of one run, and their server."""

    run: Run
    node: Node
    lease: float
    keeper: Client
    others: Sequence[Client]
    clock: Any = None

    def let_go(self) -> str:
        """Have the keeper release: what it answers, which may be that it had lost the lock."""
        answer = self.keeper.finish()
        return str(answer["error"] if isinstance(answer, dict) else answer)

    def go_on(self, since: float) -> None:
        """Wait until both waiters have held the lock."""
        for other in self.others:
            other.wait_for("released", after=since)

    def until_told(self, since: float) -> float:
        """Wait until the keeper learns that its lock is lost: seconds after `since`. It asks again
        after a third of its lease and, if that fails, after another tenth."""
        assert self.keeper.answer() == "lost"
        seconds = float(self.keeper.wait_for("lost")["t"]) - since
        limit = self.lease / 3 + min(self.lease / 10, 1) + GRACE
        assert seconds < limit, f"told after {seconds:.2f} s"
        return seconds


def begin(
    run: Run, crew: Crew, node: Node, *, leases: tuple[float, float] = LEASES, first: str = ""
) -> Kept:
    """Start the clients: the keeper holds the lock and the others wait. Each does `first`."""
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
    """Run `body` in each run, on a server that no other run uses at that time. With `clocks` the
    server has a clock of its own."""
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
    """`strike` takes the lock from the keeper and returns when the keeper could know."""
    told: list[float] = []

    def body(kept: Kept) -> None:
        struck = strike(kept)
        kept.go_on(struck)
        told.append(kept.until_told(struck))

    each(setting, body, **config)
    tell_how_soon(setting, told, since)


def tell_how_soon(setting: Setting, seconds: list[float], since: str) -> None:
    if seconds:
        setting.notes.append(
            f"{len(seconds):,} holders that lost their lock knew {max(seconds):.2f} s after "
            f"{since} at the latest"
        )
