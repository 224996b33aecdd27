"""Many waiters at one lock."""

from collections.abc import Iterator

from django_redislock.clock import now
from tests.servers import Node

from ..crew import Client
from ..scenario import Run, Setting, scenario

WAITERS = 64


@scenario(14, f"{WAITERS} waiters", runs=2, short=1, faults=0, operations=2 * WAITERS, alone=True)
def crowd(setting: Setting) -> None:
    """All want the same lock again and again, and hold it for no longer than a write takes."""
    node, crew = setting.node(), setting.crew()
    seconds = 3 if setting.short else 20

    def body(run: Run) -> None:
        clients = [run.client(crew, f"client {number}", node.url) for number in range(WAITERS)]
        for client in clients:
            client.ask("loop", lock=run.lock, times=1)  # connected, and with all that it needs
        before, began = commands(node), now()
        for client in clients:
            client.start("loop", lock=run.lock, work=(0, 0), rest=(0, 0))
        run.moment(seconds, shortest=seconds)
        for client in clients:
            client.start("sleep", seconds=0)  # so it ends its loop
        done = sum(client.answer() for client in clients)
        took = now() - began
        sent = commands(node) - before
        longest = max(wait for client in clients for wait in waits(client, began))
        setting.notes.append(
            f"{done:,} acquisitions by {WAITERS} processes, {done / took:,.0f} a second, "
            f"{sent / done:.2f} commands each; the longest wait was {longest * 1000:,.0f} ms"
        )

    setting.each(body)


def waits(client: Client, after: float) -> Iterator[float]:
    for event in client.events():
        if event["what"] == "held" and event["asked"] > after:
            yield event["t"] - event["asked"]


def commands(node: Node) -> int:
    """How many have been sent by clients: those that scripts call are others."""
    stats = node.info("commandstats")
    calls = [stats.get(f"cmdstat_{name}", "calls=0") for name in ("evalsha", "eval", "blpop")]
    return sum(int(each.split(",")[0].removeprefix("calls=")) for each in calls)
