"""Rounds of renewal in which something raises: the next ones renew all the same."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NoReturn

from redis.exceptions import ResponseError

from django_redislock import signals
from django_redislock.clock import now
from django_redislock.engine import drivers, flows
from tests.servers import Node
from tests.tools import wait_until

from .. import client as own
from ..crew import KEYS, Client
from ..scenario import Run, Setting, Shared, scenario

LEASES = 2.0, 2.5  # long enough that a busy machine alone does not lose them

LANES = 6
NUMBER = 3  # locks that one holder has in a run; their renewals go together


@scenario(
    13, "An exception in the renewal round", runs=42, short=6, operations=NUMBER + 1, at_once=True
)
def exception(setting: Setting) -> None:
    """The server answers rounds by an error; or the first of a holder's locks is taken by force,
    and who is told of it raises. The other locks are kept, for longer than their lease."""
    nodes = Shared(setting.node(lua_time_limit=50) for _ in range(LANES))
    crew = setting.crew()

    def body(run: Run) -> None:
        kind = list(FAULTS)[run.number % len(FAULTS)]
        lease = run.random.uniform(*LEASES)
        is_async = kind != EXITS and run.random.random() < 0.5
        names = [run.lock, *(f"{run.lock}, {number}" for number in range(2, NUMBER + 1))]
        with nodes.one() as node:
            holder, waiter = run.clients(crew, node, "holder", "waiter")
            about = {"names": names, "kind": kind, "is_async": is_async, "timeout": lease}
            holder.start(f"{__name__}:hold_all", **about)
            wait_until(lambda: all_have("held", holder, names))
            with FAULTS[kind](run, node, holder):
                run.fault(kind)
            waiter.start("acquire", lock=names[-1], timeout=lease)
            after = now() + 1.5 * lease
            wait_until(lambda: all_have("kept", holder, names[1:], after))
            assert holder.finish() == {"lost": [run.lock] if kind in FORCED else []}
            assert waiter.answer() is True
            waiter.ask("release", lock=names[-1])

    setting.each(body, lanes=LANES)


def all_have(what: str, client: Client, names: list[str], after: float = 0) -> bool:
    events = [each for each in client.events() if each["what"] == what and each["t"] > after]
    return {each["lock"] for each in events} >= set(names)


# What goes wrong


@contextlib.contextmanager
def force(run: Run, node: Node, holder: Client) -> Iterator[None]:
    run.log.write("taken", lock=run.lock)
    with node.client(decode_responses=False) as client:
        assert drivers.run(client, flows.force_release(KEYS.of(run.lock), None))
    yield
    holder.wait_for("lost")


@contextlib.contextmanager
def refusing(
    on: tuple[object, ...], off: tuple[object, ...], run: Run, node: Node, holder: Client
) -> Iterator[None]:
    """Have the server refuse scripts."""
    node.ask(*on)
    try:
        yield
        wait_for_failed_round(run, holder)
    finally:
        node.ask(*off)


@contextlib.contextmanager
def busy(run: Run, node: Node, holder: Client) -> Iterator[None]:
    """A script of somebody else that does not end."""
    with ThreadPoolExecutor(1) as pool, node.client(socket_timeout=None) as client:
        running = pool.submit(client.eval, "while true do end", 0)
        try:
            yield
            wait_for_failed_round(run, holder)
        finally:
            node.ask("SCRIPT", "KILL")
        assert isinstance(running.exception(10), ResponseError)


EXITS = "on_lost exits"  # in a task it ends the loop, as Python has it
FORCED = "on_lost raises", EXITS, "a receiver raises"
FAULTS: dict[str, Callable[..., contextlib.AbstractContextManager[None]]] = {
    **dict.fromkeys(FORCED, force),
    "NOPERM": partial(
        refusing,
        ("ACL", "SETUSER", "default", "-evalsha", "-eval"),
        ("ACL", "SETUSER", "default", "+evalsha", "+eval"),
    ),
    # Nobody is at that port.
    "READONLY": partial(refusing, ("REPLICAOF", "127.0.0.1", 1), ("REPLICAOF", "NO", "ONE")),
    "BUSY": busy,
}


def wait_for_failed_round(run: Run, holder: Client) -> None:
    log = run.setting.folder / f"{holder.who}.log"
    wait_until(lambda: "Renewal of" in log.read_text())


# What clients do


def hold_all(
    client: own.Client, names: list[str], kind: str, is_async: bool, **options: Any
) -> dict[str, list[str]]:
    """Hold all until there is another order; those that are lost."""

    async def hold() -> list[str]:
        about = {"is_async": is_async, "on_lost": raiser(kind), **options}
        for name in names:
            assert await own.aacquire(client, name, **about)
        while not client.is_told():
            await own.pause(0.01, is_async)
        lost = [name for name in names if not own.check(client, name)]
        for name in set(names).difference(lost):
            await own.arelease(client, name, is_async)
        return lost

    return {"lost": own.run(hold(), is_async)}


def raiser(kind: str) -> Callable[[object], None] | None:
    """What is told of the loss."""
    if kind == "a receiver raises":
        signals.lock_lost.connect(fail, weak=False)
    return {"on_lost raises": fail, EXITS: leave}.get(kind)


def fail(*about: object, **more: object) -> NoReturn:
    raise RuntimeError("to be told of it was too much")


def leave(lock: object) -> NoReturn:
    raise SystemExit("on_lost ends the program")
