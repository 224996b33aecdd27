"""What happens to servers that are up: their data, scripts, connections or memory go."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import redis

from django_redislock.clock import now
from tests.servers import Node

from .. import keeping
from ..crew import KEYS
from ..scenario import EXCLUSION, ORDER, Run, Setting, scenario

BYTES = 1000
"""What a key takes of those that fill a server."""

ROOM = 300 * BYTES


@scenario(11, "FLUSHDB", runs=40, short=4, operations=3, may_fail=(EXCLUSION, ORDER))
def flushdb(setting: Setting) -> None:
    nodes, crew = setting.shared([setting.node() for _ in range(4)]), setting.crew()
    told: list[float] = []

    def body(run: Run) -> None:
        with nodes.one() as node:
            lease = run.random.uniform(*keeping.LEASES)
            keeper, others = keeping.begin(run, crew, node, lease=lease)
            run.moment(0.5)
            run.log.write("taken", lock=run.lock)
            run.fault("flushed")
            node.ask("FLUSHDB")
            flushed = now()
            keeping.go_on(others, flushed)
            told.append(keeping.until_told(keeper, flushed, lease))

    setting.each(body, lanes=4)
    keeping.tell_how_soon(setting, told, "that")


@scenario(
    11,
    "SCRIPT FLUSH",
    runs=20,
    short=2,
    faults=20,
    operations=3,
    free_within=keeping.GRACE,
    at_once=True,
)
def script_flush(setting: Setting) -> None:
    again_and_again(setting, "scripts flushed", "SCRIPT", "FLUSH")


@scenario(
    11,
    "CLIENT KILL of all connections",
    runs=20,
    short=2,
    faults=20,
    operations=3,
    free_within=5,
    errors=("ConnectionError",),
)
def client_kill(setting: Setting) -> None:
    again_and_again(setting, "connections killed", "CLIENT", "KILL", "TYPE", "normal")


def again_and_again(setting: Setting, kind: str, *command: str) -> None:
    """Nobody loses anything by that."""
    nodes, crew = setting.shared([setting.node() for _ in range(4)]), setting.crew()

    def body(run: Run) -> None:
        with nodes.one() as node:
            keeper, others = keeping.begin(
                run, crew, node, lease=run.random.uniform(*keeping.LEASES)
            )

            def strike(times: int) -> None:
                for _ in range(times):
                    node.ask(*command)
                    run.fault(kind)
                    run.moment(0.2)

            strike(10)
            assert keeping.let_go(keeper) == "released"
            strike(10)
            keeping.go_on(others, now())

    setting.each(body, lanes=4)


@scenario(
    11,
    "Eviction: allkeys-lru",
    runs=20,
    short=2,
    operations=3,
    may_fail=(EXCLUSION, ORDER),
)
def eviction(setting: Setting) -> None:
    evicts = {"maxmemory_policy": "allkeys-lru"}
    nodes, crew = setting.shared([setting.node(**evicts) for _ in range(4)]), setting.crew()
    told: list[float] = []

    def body(run: Run) -> None:
        with nodes.one() as node:
            lease = run.random.uniform(*keeping.LEASES)
            keeper, others = keeping.begin(run, crew, node, lease=lease)
            token = keeper.wait_for("held")["token"]
            with full(node, room=ROOM), node.client() as client:
                filling = fill(client)
                since = looked = now()
                while client.hexists(KEYS.of(run.lock).lock, f"h:{token}"):
                    since = looked
                    next(filling)
                    looked = now()
                run.fault("evicted")
                evicted = now()
                client.flushdb()
            # from those who came meanwhile, too
            run.log.write("taken", lock=run.lock, since=since)
            keeping.go_on(others, evicted)
            told.append(keeping.until_told(keeper, evicted, lease))

    setting.each(body, lanes=4)
    keeping.tell_how_soon(setting, told, "that")


@scenario(
    11,
    "Out of memory: noeviction",
    runs=20,
    short=2,
    operations=3,
    errors=("OutOfMemoryError", "ResponseError"),
)
def out_of_memory(setting: Setting) -> None:
    """Who holds goes on, and who is new is told."""
    nodes, crew = setting.shared([setting.node() for _ in range(4)]), setting.crew()

    def body(run: Run) -> None:
        with nodes.one() as node:
            keeper, others = keeping.begin(
                run, crew, node, lease=run.random.uniform(*keeping.LEASES)
            )
            newcomer = run.client(crew, "newcomer", node.url)
            with full(node):
                run.fault("full")
                since = now()
                for _ in range(2):
                    since = keeper.wait_for("kept", after=since)["t"]
                answer = newcomer.ask("acquire", lock=f"{run.lock} too")
                assert "maxmemory" in answer["text"], answer
                released_while_full = run.random.random() < 0.5
                if released_while_full:
                    assert keeping.let_go(keeper) == "released"
            if not released_while_full:
                assert keeping.let_go(keeper) == "released"
            keeping.go_on(others, now())
            assert newcomer.ask("acquire", lock=f"{run.lock} too") is True
            newcomer.ask("release", lock=f"{run.lock} too")

    setting.each(body, lanes=4)


@contextmanager
def full(node: Node, room: int | None = None) -> Iterator[None]:
    """There is room for so many bytes more, or less than for what there is."""
    used = int(node.info("memory")["used_memory"])
    node.ask("CONFIG", "SET", "maxmemory", 1 if room is None else used + room)
    yield
    node.ask("CONFIG", "SET", "maxmemory", 0)


def fill(client: "redis.Redis") -> Iterator[None]:
    """Write a hundred keys, again and again."""
    for first in count(step=100):
        with client.pipeline(transaction=False) as pipeline:
            for number in range(first, first + 100):
                pipeline.set(f"filler {number}", "x" * BYTES)
            pipeline.execute()
        yield
