"""Many waiters at one lock."""

from collections.abc import Iterator

from django_redislock.clock import now
from django_redislock.engine import store, waiters
from tests.servers import Node

from .. import client as own
from ..checker import History, Hold
from ..crew import finish_all
from ..scenario import Run, Setting, scenario

WAITERS = 64

COMMANDS = 3
"""Commands of one acquisition: request, wait and release. A waiter that waits for long repeats the
first two after each `HEARTBEAT_SECONDS`."""

SLOW_HEARTBEAT_SECONDS = 3.0
"""Heartbeat interval of waiters that depend on notifications."""


FACTS = {"short": 1, "faults": 0, "operations": 2 * WAITERS, "at_once": True, "alone": True}


@scenario(14, f"{WAITERS} waiters", runs=2, **FACTS)
def crowd(setting: Setting) -> None:
    take_turns(setting, seconds=3 if setting.short else 20)


@scenario(14, f"{WAITERS} waiters that depend on notifications", runs=1, **FACTS)
def notified(setting: Setting) -> None:
    """A waiter that is not notified waits for long, because heartbeats are rare."""
    take_turns(setting, seconds=2 if setting.short else 10, first=SLOW_HEARTBEATS)


def take_turns(setting: Setting, seconds: float, first: str = "") -> None:
    """All clients acquire the same lock repeatedly, and hold it only for a write. Then they stop,
    and the last waiters depend on handovers between each other."""
    node, crew = setting.node(), setting.crew()

    def body(run: Run) -> None:
        clients = run.clients(crew, node, *(f"client {number}" for number in range(WAITERS)))
        for client in clients:
            if first:
                client.ask(first)
            client.ask("loop", lock=run.lock, times=1)  # connect and load the scripts
        before, began = commands(node), now()
        for client in clients:
            client.start("loop", lock=run.lock, work=(0, 0), rest=(0, 0))
        run.moment(seconds, shortest=seconds)
        done = sum(finish_all(clients))
        took = now() - began
        sent = commands(node) - before
        events = [event for client in clients for event in client.events()]
        held = [hold for hold in History(events).holds if hold.asked > began]
        waits = [hold.began - hold.asked for hold in held]
        turns = max(turns_waited(held))
        setting.notes.append(
            f"{done:,} acquisitions by {WAITERS} processes, {done / took:,.0f} per second, "
            f"{sent / done:.2f} commands each; the longest wait was {max(waits) * 1000:,.0f} ms, "
            f"or {turns} other holders"
        )
        # A waiter confirms a grant that comes long after its last heartbeat.
        each = COMMANDS + bool(first)
        allowed = sum(each + 2 * int(wait / waiters.HEARTBEAT_SECONDS) for wait in waits)
        assert sent <= allowed, f"{sent} commands, not {allowed}"
        assert turns <= WAITERS, f"a client waited for {turns} other holders"

    setting.each(body)


def turns_waited(held: list[Hold]) -> Iterator[int]:
    """Yield for each hold how many other holds began while its client was queued."""
    in_order = sorted(held, key=lambda hold: hold.fence)
    for place, hold in enumerate(in_order):
        first = place
        while hold.queued and first and in_order[first - 1].began > hold.queued:
            first -= 1
        yield place - first


def commands(node: Node) -> int:
    """Return the number of commands from clients, without the commands that scripts call."""
    stats = node.info("commandstats")
    calls = [stats.get(f"cmdstat_{name}", "calls=0") for name in ("evalsha", "eval", "blpop")]
    return sum(int(each.split(",")[0].removeprefix("calls=")) for each in calls)


# Orders for clients

SLOW_HEARTBEATS = f"{__name__}:slow_heartbeats"


def slow_heartbeats(client: own.Client) -> None:
    waiters.HEARTBEAT_SECONDS = SLOW_HEARTBEAT_SECONDS
    store.WAITER_TTL_MS = round(3000 * SLOW_HEARTBEAT_SECONDS)
