"""Many waiters at one lock."""

from collections.abc import Iterator

from django_redislock.clock import now
from django_redislock.engine import protocol
from tests.servers import Node

from .. import client as own
from ..crew import Client, finish_all
from ..events import Event
from ..scenario import Run, Setting, scenario

WAITERS = 64

COMMANDS = 3
"""For one acquisition: to ask, to wait, and to release. Who waits for long asks and waits again
after each `SLICE`."""

SELDOM = 3.0
"""Seconds after which a waiter shows life that comes when it is told, and hardly otherwise."""


FACTS = {"short": 1, "faults": 0, "operations": 2 * WAITERS, "at_once": True, "alone": True}


@scenario(14, f"{WAITERS} waiters", runs=2, **FACTS)
def crowd(setting: Setting) -> None:
    take_turns(setting, seconds=3 if setting.short else 20)


@scenario(14, f"{WAITERS} waiters that depend on notifications", runs=1, **FACTS)
def told(setting: Setting) -> None:
    """So whoever is not told waits for long."""
    take_turns(setting, seconds=2 if setting.short else 10, first=COME_SELDOM)


def take_turns(setting: Setting, seconds: float, first: str = "") -> None:
    """All want the same lock again and again, and hold it for no longer than a write takes. Then
    they stop, and those that still wait have nobody but each other to hand it on."""
    node, crew = setting.node(), setting.crew()

    def body(run: Run) -> None:
        clients = run.clients(crew, node, *(f"client {number}" for number in range(WAITERS)))
        for client in clients:
            if first:
                client.ask(first)
            client.ask("loop", lock=run.lock, times=1)  # connected, and with all that it needs
        before, began = commands(node), now()
        for client in clients:
            client.start("loop", lock=run.lock, work=(0, 0), rest=(0, 0))
        run.moment(seconds, shortest=seconds)
        done = sum(finish_all(clients))
        took = now() - began
        sent = commands(node) - before
        held = [each for client in clients for each in holds(client) if each["asked"] > began]
        waits = [each["t"] - each["asked"] for each in held]
        turns = max(turns_waited(held))
        setting.notes.append(
            f"{done:,} acquisitions by {WAITERS} processes, {done / took:,.0f} per second, "
            f"{sent / done:.2f} commands each; the longest wait was {max(waits) * 1000:,.0f} ms, "
            f"or {turns} other holders"
        )
        allowed = sum(COMMANDS + 2 * int(wait / protocol.SLICE) for wait in waits)
        assert sent <= allowed, f"{sent} commands, not {allowed}"
        assert turns <= WAITERS, f"somebody waited for {turns} turns of others"

    setting.each(body)


def holds(client: Client) -> Iterator[Event]:
    """Its acquisitions, with when it stood in the queue, if it had to."""
    queued = None
    for event in client.events():
        match event["what"]:
            case "want":
                queued = None
            case "queued":
                queued = event["t"]
            case "held":
                yield event | {"queued": queued}


def turns_waited(held: list[Event]) -> Iterator[int]:
    """How often somebody else came to hold it while one stood in the queue, for each."""
    in_order = sorted(held, key=lambda event: event["fence"])
    for place, event in enumerate(in_order):
        first = place
        while event["queued"] and first and in_order[first - 1]["t"] > event["queued"]:
            first -= 1
        yield place - first


def commands(node: Node) -> int:
    """How many have been sent by clients: those that scripts call are others."""
    stats = node.info("commandstats")
    calls = [stats.get(f"cmdstat_{name}", "calls=0") for name in ("evalsha", "eval", "blpop")]
    return sum(int(each.split(",")[0].removeprefix("calls=")) for each in calls)


# What clients do

COME_SELDOM = f"{__name__}:come_seldom"


def come_seldom(client: own.Client) -> None:
    protocol.SLICE, protocol.ALIVE = SELDOM, 3 * SELDOM
