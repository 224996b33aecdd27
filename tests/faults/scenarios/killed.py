"""Processes that are killed."""

from django_redislock.engine.timing import HEARTBEAT_SECONDS, WAITER_TTL_SECONDS
from tests.servers import Node

from ..crew import Client
from ..scenario import Run, Setting, scenario

GRACE = 2.0  # additional seconds for a busy machine

LEASES = 0.3, 1.0


def until_free(lease: float) -> float:
    """Return the limit in seconds from the death of a holder to the next holder."""
    return lease + 0.5 + GRACE


UNTIL_FREE = until_free(max(LEASES))


def take_turns(
    run: Run, node: Node, lease: float, work: tuple[float, float] = (0.01, 0.04)
) -> list[Client]:
    """Start three clients that use the run's lock in turn."""
    clients = run.clients(node, "first", "second", "third")
    for client in clients:
        client.start("loop", lock=run.lock, timeout=lease, work=work)
    return clients


@scenario(1, "SIGKILL of the holder", runs=300, short=16, operations=2, free_within=UNTIL_FREE)
def holder(setting: Setting) -> None:
    """Three clients take turns, and one of them is killed."""
    node = setting.node()

    def body(run: Run) -> None:
        clients = take_turns(run, node, run.random.uniform(*LEASES))
        victim = run.random.choice(clients)
        victim.wait_for("held")
        run.moment(run.random.choice((0.02, 0.2)))  # usually while it holds
        victim.kill()
        for client in clients:
            if client is not victim:
                client.wait_for("released", after=victim.died)

    setting.each(body, lanes=8)


WAITERS = {"runs": 120, "short": 4, "operations": 2, "free_within": 3}


@scenario(4, "SIGKILL of the first waiter", **WAITERS)
def head(setting: Setting) -> None:
    """The first waiter is killed, shortly or long before the release."""
    node = setting.node()

    def body(run: Run) -> None:
        holder, first, live = queue(run, node)
        first.kill()
        # The longest delay is the time until they count as dead.
        run.moment(run.random.choice((0, 0.1, WAITER_TTL_SECONDS + HEARTBEAT_SECONDS)))
        run.free()
        holder.ask("release", lock=run.lock)
        assert live.answer()
        live.ask("release", lock=run.lock)

    setting.each(body, lanes=6)


@scenario(5, "SIGKILL of a waiter with an unconfirmed grant", faults=2, **WAITERS)
def granted(setting: Setting) -> None:
    """A waiter dies after it was granted the lock, before it knows."""
    node = setting.node()

    def body(run: Run) -> None:
        holder, first, live = queue(run, node)
        first.stop()  # the grant reaches the machine, but not the process
        held = holder.last("held")
        run.free()
        holder.ask("release", lock=run.lock)
        info = run.info(node)
        assert info, "no waiter was granted the lock"
        assert held
        assert info.token != held["token"]
        run.moment(0.2)
        first.kill()
        assert live.answer()
        assert live.wait_for("held")["token"] != info.token
        live.ask("release", lock=run.lock)

    setting.each(body, lanes=6)


def queue(run: Run, node: Node) -> list[Client]:
    """Return the holder, the waiter that will die, and a last waiter."""
    holder, *waiters = clients = run.clients(node, "holder", "first", "live")
    holder.ask("acquire", lock=run.lock)
    for waiter in waiters:
        waiter.start("acquire", lock=run.lock)
        waiter.wait_for("queued")
    return clients
