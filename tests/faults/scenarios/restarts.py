"""The server restarts or loses its data, while a keeper holds a lock and two clients wait."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django_redislock.clock import now
from tests.servers import Node

from ..crew import Client
from ..scenario import EXCLUSION, ORDER, Run, Setting, Shared, scenario
from .killed import GRACE

LEASES = 2.5, 5.0  # seconds; long enough for a busy machine
LONG_LEASES = 5.0, 8.0  # longer than a restart

LANES = 4


@dataclass(frozen=True)
class Kept:
    """The clients of one run, and their server."""

    run: Run
    node: Node
    lease: float
    keeper: Client
    others: Sequence[Client]

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


def each(
    setting: Setting,
    body: Callable[[Kept], object],
    leases: tuple[float, float] = LEASES,
    **config: Any,
) -> None:
    """Execute `body` for each run, on a server that no other run uses at the same time. Then the
    keeper holds the lock, and the others wait for it."""
    crew = setting.crew()
    nodes = Shared(setting.node(**config) for _ in range(LANES))

    def with_a_node(run: Run) -> None:
        lease = run.random.uniform(*leases)
        with nodes.one() as node:
            keeper, *others = run.clients(crew, node, "keeper", "one", "other")
            keeper.start("keep", lock=run.lock, timeout=lease)
            keeper.wait_for("checked")
            for other in others:
                other.start("loop", lock=run.lock, timeout=lease)
                other.wait_for("queued")
            body(Kept(run, node, lease, keeper, others))

    setting.each(with_a_node, lanes=LANES)


def lose(setting: Setting, strike: Callable[[Kept], float], since: str) -> None:
    """`strike` makes the keeper lose its lock, and returns when the keeper can learn of it."""
    losses: list[float] = []

    def body(kept: Kept) -> None:
        kept.run.moment(0.5)
        kept.run.log.write("taken", lock=kept.run.lock)
        struck = strike(kept)
        kept.wait_for_both(struck)
        losses.append(kept.seconds_until_lost(struck))

    each(setting, body)
    if losses:
        setting.notes.append(
            f"{len(losses):,} holders lost their lock; "
            f"the slowest knew {max(losses):.2f} s after {since}"
        )


MANY = {"runs": 40, "short": 4, "operations": 3}
FACTS = {**MANY, "errors": ("ConnectionError", "BusyLoadingError", "TimeoutError")}

UNTIL_FREE = 3.0  # seconds; waiters keep their places in the queue


@scenario(7, "Server killed and restarted: empty", may_fail=(EXCLUSION,), **FACTS)
def empty(setting: Setting) -> None:
    lose(setting, restart, "the server was back")


@scenario(11, "FLUSHDB", may_fail=(EXCLUSION, ORDER), **MANY)
def flushdb(setting: Setting) -> None:
    def strike(kept: Kept) -> float:
        kept.run.fault("flushed")
        kept.node.ask("FLUSHDB")
        return now()

    lose(setting, strike, "that")


def with_a_file(setting: Setting, sync: str) -> int:
    """Restart servers with an append-only file, and return how many holders kept their lock."""
    ends: list[str] = []

    def body(kept: Kept) -> None:
        if sync == "everysec":
            kept.run.log.write("taken", lock=kept.run.lock)
        back = restart(kept)
        kept.keeper.wait_for("kept", after=back)
        ends.append(kept.keeper.finish())
        kept.wait_for_both(back)

    each(setting, body, LONG_LEASES, appendonly="yes", appendfsync=sync)
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
