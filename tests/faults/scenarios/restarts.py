"""The server is killed and restarted, while a keeper holds a lock and two clients wait."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.servers import Node

from ..crew import Client
from ..scenario import EXCLUSION, Run, Setting, Shared, scenario
from .killed import GRACE

LEASES = 2.5, 5.0  # seconds; long enough for a busy machine
LONG_LEASES = 5.0, 8.0  # longer than a restart

LANES = 4

UNTIL_FREE = 3.0  # seconds; waiters keep their places in the queue


@dataclass(frozen=True)
class Kept:
    """The clients of one run, and their server."""

    run: Run
    node: Node
    lease: float
    keeper: Client
    others: Sequence[Client]

    def restart(self) -> float:
        """Kill and restart the server, and return the time at which it was available again."""
        self.run.moment(0.5)
        self.run.fault("server killed")
        self.run.log.write("away", lock=self.run.lock)
        self.node.kill()
        self.run.moment(0.5)
        self.node.start()
        return float(self.run.log.write("back", lock=self.run.lock)["t"])

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
    nodes = Shared(setting.node(**config) for _ in range(LANES))

    def with_a_node(run: Run) -> None:
        lease = run.random.uniform(*leases)
        with nodes.one() as node:
            keeper, *others = run.clients(node, "keeper", "one", "other")
            keeper.start("keep", lock=run.lock, timeout=lease)
            keeper.wait_for("checked")
            for other in others:
                other.start("loop", lock=run.lock, timeout=lease)
                other.wait_for("queued")
            body(Kept(run, node, lease, keeper, others))

    setting.each(with_a_node, lanes=LANES)


FACTS = {
    "runs": 40,
    "short": 4,
    "operations": 3,
    "errors": ("ConnectionError", "BusyLoadingError", "TimeoutError"),
}


@scenario(7, "Server killed and restarted: empty", may_fail=(EXCLUSION,), **FACTS)
def empty(setting: Setting) -> None:
    losses: list[float] = []

    def body(kept: Kept) -> None:
        back = kept.restart()
        kept.wait_for_both(back)
        losses.append(kept.seconds_until_lost(back))

    each(setting, body)
    if losses:
        setting.notes.append(
            f"{len(losses):,} holders lost their lock; "
            f"the slowest knew {max(losses):.2f} s after the server was back"
        )


@scenario(7, "Server killed and restarted: with AOF always", free_within=UNTIL_FREE, **FACTS)
def with_a_file(setting: Setting) -> None:
    def body(kept: Kept) -> None:
        back = kept.restart()
        kept.keeper.wait_for("kept", after=back)
        assert kept.keeper.finish() == "released", "it lost its lock"
        kept.wait_for_both(back)

    each(setting, body, LONG_LEASES, appendonly="yes", appendfsync="always")
