"""Processes that are killed."""

from django_redislock.engine.timing import HEARTBEAT_SECONDS, WAITER_TTL_SECONDS
from tests.servers import Node

from ..crew import Client, Crew, kill_all
from ..scenario import Run, Setting, scenario

GRACE = 2.0  # additional seconds for a busy machine

LEASES = 0.3, 1.0


def until_free(lease: float) -> float:
    """Return the limit in seconds from the death of a holder to the next holder."""
    return lease + 0.5 + GRACE


UNTIL_FREE = until_free(max(LEASES))


def take_turns(
    run: Run, crew: Crew, node: Node, lease: float, work: tuple[float, float] = (0.01, 0.04)
) -> list[Client]:
    """Start three clients that use the run's lock in turn."""
    clients = run.clients(crew, node, "first", "second", "third")
    for client in clients:
        client.start("loop", lock=run.lock, timeout=lease, work=work)
    return clients


@scenario(
    1,
    "SIGKILL of the holder",
    runs=300,
    short=16,
    operations=2,
    free_within=UNTIL_FREE,
    fast_handovers=True,
)
def holder(setting: Setting) -> None:
    """Three clients take turns, and one of them is killed."""
    node, crew = setting.node(), setting.crew()

    def body(run: Run) -> None:
        clients = take_turns(run, crew, node, run.random.uniform(*LEASES))
        victim = run.random.choice(clients)
        victim.wait_for("held")
        run.moment(run.random.choice((0.02, 0.2)))  # usually while it holds
        victim.kill()
        for client in clients:
            if client is not victim:
                client.wait_for("released", after=victim.died)

    setting.each(body, lanes=8)


WAITERS = {"operations": 2, "free_within": 3}
ONE = {"runs": 120, "short": 4, **WAITERS}
FIFTY = {"runs": 24, "short": 2, **WAITERS, "args": {"dead": 50, "lanes": 2}}


@scenario(4, "SIGKILL of the first 50 waiters", faults=50, **FIFTY)
@scenario(4, "SIGKILL of the first waiter", **ONE)
def head(setting: Setting, dead: int = 1, lanes: int = 6) -> None:
    """The first `dead` waiters are killed, shortly or long before the release."""
    node, crew = setting.node(), setting.crew()

    def body(run: Run) -> None:
        holder, waiters, live = queue(run, crew, node, dead)
        kill_all(waiters)
        # The longest delay is the time until they count as dead.
        run.moment(run.random.choice((0, 0.1, WAITER_TTL_SECONDS + HEARTBEAT_SECONDS)))
        run.free()
        holder.ask("release", lock=run.lock)
        assert live.answer()
        live.ask("release", lock=run.lock)

    setting.each(body, lanes=lanes)


UNCONFIRMED = "SIGKILL of a waiter with an unconfirmed grant"


@scenario(5, f"{UNCONFIRMED}, and of 49 behind it", faults=51, **FIFTY)
@scenario(5, UNCONFIRMED, faults=2, **ONE)
def granted(setting: Setting, dead: int = 1, lanes: int = 6) -> None:
    """A waiter dies after it was granted the lock, before it knows. The waiters behind it, except
    the last, die shortly before or after the grant."""
    node, crew = setting.node(), setting.crew()

    def body(run: Run) -> None:
        holder, (first, *others), live = queue(run, crew, node, dead)
        first.stop()  # the grant reaches the machine, but not the process
        die_before = run.random.random() < 0.5
        if die_before:
            kill_all(others)
            run.moment(0.2)
        held = holder.last("held")
        run.free()
        holder.ask("release", lock=run.lock)
        if not die_before:
            kill_all(others)
        info = run.info(node)
        assert info, "no waiter was granted the lock"
        assert held
        assert info.token != held["token"]
        run.moment(0.2)
        first.kill()
        assert live.answer()
        assert live.wait_for("held")["token"] != info.token
        live.ask("release", lock=run.lock)

    setting.each(body, lanes=lanes)


def queue(run: Run, crew: Crew, node: Node, dead: int) -> tuple[Client, list[Client], Client]:
    """Queue clients, and return the holder, the waiters that will die, and a last waiter."""
    names = [f"client {number}" for number in range(dead + 2)]
    holder, first, *others, live = run.clients(crew, node, *names)
    holder.ask("acquire", lock=run.lock)
    for some in ([first], others, [live]):
        for waiter in some:
            waiter.start("acquire", lock=run.lock)
        for waiter in some:
            waiter.wait_for("queued")
    return holder, [first, *others], live
