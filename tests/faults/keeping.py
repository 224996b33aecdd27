"""One client that keeps a lock and works, and others that wait for it, while something happens to
their server: what several families of scenarios share."""

from tests.servers import Node

from .crew import Client, Crew
from .scenario import Run, Setting

GRACE = 2.0
"""Seconds that a busy machine may take on top of what is promised."""


LEASES = 2.5, 5.0
"""Seconds: long enough that a busy machine does not lose them."""


def begin(
    run: Run, crew: Crew, node: Node, *, lease: float, first: str = ""
) -> tuple[Client, list[Client]]:
    """The keeper, who holds it and writes, and two who stand in the queue. All may be asked
    something `first`."""
    keeper, *others = (run.client(crew, who, node.url) for who in ("keeper", "one", "other"))
    for client in (keeper, *others) if first else ():
        client.ask(first)
    keeper.start("tests.faults.work:keep", lock=run.lock, timeout=lease, between=0.01)
    keeper.wait_for("checked")
    for other in others:
        other.start("loop", lock=run.lock, timeout=lease)
        other.wait_for("queued")
    return keeper, others


def until_told(keeper: Client, since: float, lease: float) -> float:
    """Wait until the keeper learns that its lock is lost, in time: how long after `since`, when
    it could have known, that was."""
    assert keeper.answer() == "lost"
    lost = keeper.wait_for("lost")["t"]
    assert lost - since < next_renewal(lease) + GRACE, f"told after {lost - since:.2f} s"
    return float(lost - since)


def let_go(keeper: Client) -> str:
    """Let it release; what became of that: it may have lost it before."""
    keeper.start("sleep", seconds=0)
    answer = keeper.answer()
    return str(answer["error"] if isinstance(answer, dict) else answer)


def next_renewal(lease: float) -> float:
    """Seconds after which a holder surely asks again: a third of its lease, and where that
    failed, another tenth."""
    return lease / 3 + min(lease / 10, 1)


def go_on(others: list[Client], since: float) -> None:
    """Wait until each of the others has had it."""
    for other in others:
        other.wait_for("released", after=since)


def tell_how_soon(setting: Setting, seconds: list[float], since: str) -> None:
    if seconds:
        setting.notes.append(
            f"{len(seconds):,} holders that lost their lock knew {max(seconds):.2f} s after "
            f"{since} at the latest"
        )
