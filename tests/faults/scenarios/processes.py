"""Faults in the process of a holder: its event loop is blocked, it forks or becomes another
program, or a renewal round raises an exception.
"""

import asyncio
import contextlib
import multiprocessing
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from redis.exceptions import ResponseError

from django_redislock import signals
from django_redislock.clock import now
from django_redislock.engine import protocol, runners
from django_redislock.engine.timing import HEARTBEAT_SECONDS
from tests.servers import Node
from tests.tools import wait_until

from .. import client as own
from ..crew import KEYS, Client
from ..events import Log
from ..judge import AT_ONCE
from ..scenario import Run, Setting, Shared, scenario
from .killed import until_free

LEASES = 0.4, 1.0
LONG_LEASE = 3.0
SHORT = 0.3  # part of a long lease; renewal after a third of the lease is still in time


FACTS = {
    "runs": 48,
    "short": 4,
    "operations": 2,
    "free_within": until_free(max(LEASES)),
    "wake_within": AT_ONCE + HEARTBEAT_SECONDS,
}


@scenario(13, "A blocked asyncio loop", **FACTS)
@scenario(
    13,
    "A blocked gevent loop",
    args={"hold": "hold_in_greenlet", "module": "tests.faults.gevent_client"},
    **FACTS,
)
def blocked(setting: Setting, hold: str = "hold_in_task", **made: Any) -> None:
    """One greenlet or task holds the lock, and another blocks the loop until the next holder has
    written, or for less than the lease. In the second case the lock is not lost."""
    node, crew, others = setting.node(), setting.crew(**made), setting.crew()

    def body(run: Run) -> None:
        long = run.number % 4 != 0
        lease = run.random.uniform(*LEASES) if long else LONG_LEASE
        holder = run.client(crew, "holder", node.url)
        waiter = run.client(others, "waiter", node.url)
        what = {"lock": run.lock, "seconds": None if long else lease * SHORT, "timeout": lease}
        holder.start(f"{__name__}:{hold}", **what)
        holder.wait_for("stopped")
        waiter.start("loop", lock=run.lock, times=1, timeout=lease)
        found = holder.answer()
        assert found == {"lost": long, "accepted": not long, "notified": long}, found
        assert waiter.answer() == 1

    setting.each(body, lanes=6)


# Orders for clients


def hold_in_greenlet(
    client: own.Client, lock: str, seconds: float | None, **options: Any
) -> dict[str, Any]:
    """Check the lock, let another greenlet block the hub, and then write."""
    from gevent import monkey, sleep, spawn

    notified: list[Any] = []
    assert own.acquire(client, lock, on_lost=notified.append, **options)
    assert own.check(client, lock)
    blocker = spawn(block, client, lock, seconds, monkey.get_original("time", "sleep"))
    sleep(0)
    assert blocker.ready(), "nothing was blocked"
    found = write_late(client, lock)
    if found["lost"]:
        wait_until(lambda: notified)
    else:
        own.release(client, lock)
    return {**found, "notified": bool(notified)}


def hold_in_task(client: own.Client, lock: str, **options: Any) -> dict[str, Any]:
    return asyncio.run(_hold_in_task(client, lock, **options))


async def _hold_in_task(
    client: own.Client, lock: str, seconds: float | None, **options: Any
) -> dict[str, Any]:
    notified = asyncio.Event()
    assert await own.aacquire(client, lock, on_lost=lambda _: notified.set(), **options)
    assert own.check(client, lock)
    asyncio.get_running_loop().call_soon(block, client, lock, seconds, time.sleep)
    await asyncio.sleep(0)
    found = write_late(client, lock)
    if found["lost"]:
        async with asyncio.timeout(10):
            await notified.wait()
    else:
        await own.arelease(client, lock)
    return {**found, "notified": notified.is_set()}


def block(
    client: own.Client, lock: str, seconds: float | None, sleep: Callable[[float], None]
) -> None:
    """Block this thread for `seconds`, or until another client has written if None."""
    client.log.write("stopped", client=client.who)
    if seconds is None:
        fence, register = client.held[lock].fence_token, client.register(lock)
        while register.greatest() <= fence:
            sleep(0.005)
    else:
        sleep(seconds)
    client.log.write("resumed", client=client.who)


def write_late(client: own.Client, lock: str) -> dict[str, bool]:
    """Return whether the holder knows of the loss, and whether the fence accepts its write."""
    held = client.held[lock]
    found = {"lost": held.lost}
    return found | {"accepted": client.register(lock).write(client.who, held.fence_token)}


FORK_LEASES = 1.5, 2.0  # long enough for a busy machine


UNTIL_FREE = until_free(max(FORK_LEASES))


@scenario(13, "Fork after acquire", runs=48, short=6, operations=8, free_within=UNTIL_FREE)
def fork(setting: Setting) -> None:
    """A holder forks while one of its threads waits for another lock. The child process shares
    neither lock, and uses its own. Then one of the two processes is killed."""
    node, crew = setting.node(), setting.crew()

    def body(run: Run) -> None:
        lease = run.random.uniform(*FORK_LEASES)
        other, childs = f"{run.lock} other", f"{run.lock} child's"
        parent, third = run.clients(crew, node, "parent", "third")
        parent.ask("acquire", lock=run.lock, timeout=lease)
        third.ask("acquire", lock=other, timeout=lease)
        parent.ask(f"{__name__}:wait_in_a_thread", lock=other, timeout=lease)
        parent.wait_for("queued")
        run.moment(lease / 2)  # so that the fork strikes a renewal too
        way = run.random.choice(("os.fork", "multiprocessing"))
        child = run.client_of(Parent(parent, setting.folder, way), "child", {})
        has_no_part(child, run.lock)
        child.ask("loop", lock=childs, times=3, timeout=lease, ignore_errors=False)
        child.ask("acquire", lock=childs, timeout=lease)
        third.ask("release", lock=other)
        assert parent.wait_for("released")["lock"] == other
        is_renewed(run, node, parent)
        if run.random.random() < 0.5:
            parent.kill()
            gets(third, run.lock, lease)
            child.ask("release", lock=childs)
        else:
            child.kill()
            gets(third, childs, lease)
            parent.ask("release", lock=run.lock)

    setting.each(body, lanes=6)


def has_no_part(child: Client, lock: str) -> None:
    state = child.ask(f"{__name__}:tell", lock=lock)
    assert state == {"token": None, "fence_token": None, "lost": False, "owned": False}
    assert child.ask("release", lock=lock)["error"] == "LockNotOwnedError"
    assert child.ask("acquire", lock=lock, how={"blocking": False}) is False


def is_renewed(run: Run, node: Node, holder: Client) -> None:
    """Check that the parent still holds the lock and renews its lease."""
    last = run.info(node)
    assert last, "the parent's lock was released"
    wait_until(lambda: (info := run.info(node)) and info.expires_at > last.expires_at)
    assert holder.ask(f"{__name__}:tell", lock=run.lock)["owned"] is True


def gets(client: Client, lock: str, lease: float) -> None:
    assert client.ask("acquire", lock=lock, timeout=lease) is True
    client.ask("release", lock=lock)


class Parent:
    """A client that forks another client, with the `fork()` of a `Crew`."""

    def __init__(self, client: Client, folder: Path, way: str) -> None:
        self.client = client
        self.folder = folder
        self.way = way

    def fork(self, order: dict[str, Any]) -> tuple[int, socket.socket]:
        address = str(self.folder / f"{self.client.pid}.socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen()
            listener.settimeout(20)
            arguments = {"who": order["who"], "address": address, "way": self.way}
            pid = self.client.ask(f"{__name__}:fork_here", **arguments)
            orders, _ = listener.accept()
        orders.setblocking(True)
        return pid, orders


@scenario(13, "exec after acquire", runs=48, short=4, operations=2, free_within=UNTIL_FREE)
def execute(setting: Setting) -> None:
    """A holder calls `exec`. Its connections are closed, and its lock is free when the lease has
    expired."""
    node, crew = setting.node(), setting.crew()

    def body(run: Run) -> None:
        lease, name = run.random.uniform(*FORK_LEASES), f"run-{run.number}"
        holder = run.client(crew, "holder", node.url, client_name=name)
        waiter = run.client(crew, "waiter", node.url)
        holder.ask("acquire", lock=run.lock, timeout=lease)
        waiter.start("acquire", lock=run.lock, timeout=lease)
        waiter.wait_for("queued")
        run.moment(lease / 2)
        assert connections(node, name), "the holder's connections were not found"
        holder.start(f"{__name__}:become_another_program")
        wait_until(lambda: program_of(holder) == PROGRAM, interval=0.001)
        run.log.write("killed", client=holder.who, dead=now())
        wait_until(lambda: not connections(node, name))
        assert waiter.answer() is True
        waiter.ask("release", lock=run.lock)
        assert program_of(holder) == PROGRAM, "the other program ended"

    setting.each(body, lanes=8)


PROGRAM = ["cat"]


def program_of(client: Client) -> list[str]:
    return Path(f"/proc/{client.pid}/cmdline").read_text().split("\0")[:-1]


def connections(node: Node, name: str) -> list[dict[str, str]]:
    with node.client() as client:
        return [each for each in client.client_list() if each["name"] == name]


# Orders for clients


def wait_in_a_thread(client: own.Client, lock: str, **options: Any) -> None:
    def wait() -> None:
        own.acquire(client, lock, **options)
        own.release(client, lock)

    threading.Thread(target=wait).start()


def fork_here(client: own.Client, who: str, address: str, way: str) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about a fork with threads
        if way == "multiprocessing":
            context = multiprocessing.get_context("fork")
            child = context.Process(target=be_client, args=(client, who, address))
            child.start()
            assert child.pid
            return child.pid
        if pid := os.fork():
            return pid
    try:
        be_client(client, who, address)
    finally:
        os._exit(0)


def be_client(client: own.Client, who: str, address: str) -> None:
    """Continue as a client with this name, with a copy of the parent's state."""
    client.who, client.log = who, Log(client.folder, who)
    with socket.socket(socket.AF_UNIX) as client.orders:
        client.orders.connect(address)
        client.serve()
    os._exit(0)


def tell(client: own.Client, lock: str) -> dict[str, Any]:
    held = client.held[lock]
    known = {name: getattr(held, name) for name in ("token", "fence_token", "lost")}
    return {**known, "owned": held.owned()}


def become_another_program(client: own.Client) -> None:
    os.dup2(client.orders.fileno(), 0)  # the program exits when the socket is closed
    os.execvp(PROGRAM[0], PROGRAM)  # noqa: S606  no shell


ROUND_LEASES = 2.0, 2.5  # long enough for a busy machine

LANES = 6
NUMBER = 3  # locks of a holder in a run, which are renewed together


@scenario(
    13, "An exception in the renewal round", runs=42, short=6, operations=NUMBER + 1, at_once=True
)
def exception(setting: Setting) -> None:
    """The server replies to renewal rounds with an error, or the first lock of a holder is
    force-released and its `on_lost` or signal receiver raises. The holder keeps its other locks
    for longer than their lease."""
    nodes = Shared(setting.node(lua_time_limit=50) for _ in range(LANES))
    crew = setting.crew()

    def body(run: Run) -> None:
        kind = list(ROUND_FAULTS)[run.number % len(ROUND_FAULTS)]
        lease = run.random.uniform(*ROUND_LEASES)
        is_async = kind != EXITS and run.random.random() < 0.5
        names = [run.lock, *(f"{run.lock}, {number}" for number in range(2, NUMBER + 1))]
        with nodes.one() as node:
            holder, waiter = run.clients(crew, node, "holder", "waiter")
            about = {"names": names, "kind": kind, "is_async": is_async, "timeout": lease}
            holder.start(f"{__name__}:hold_all", **about)
            wait_until(lambda: all_have("held", holder, names))
            with ROUND_FAULTS[kind](run, node, holder):
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


# Faults


@contextlib.contextmanager
def force(run: Run, node: Node, holder: Client) -> Iterator[None]:
    run.log.write("taken", lock=run.lock)
    with node.client(decode_responses=False) as client:
        assert runners.run(client, protocol.force_release(KEYS.of(run.lock), None))
    yield
    holder.wait_for("lost")


@contextlib.contextmanager
def refusing(
    on: tuple[object, ...], off: tuple[object, ...], run: Run, node: Node, holder: Client
) -> Iterator[None]:
    """Make the server refuse scripts during the block."""
    node.ask(*on)
    try:
        yield
        wait_for_failed_round(run, holder)
    finally:
        node.ask(*off)


@contextlib.contextmanager
def busy(run: Run, node: Node, holder: Client) -> Iterator[None]:
    """Block the server with an endless script of another client."""
    with ThreadPoolExecutor(1) as pool, node.client(socket_timeout=None) as client:
        running = pool.submit(client.eval, "while true do end", 0)
        try:
            yield
            wait_for_failed_round(run, holder)
        finally:
            node.ask("SCRIPT", "KILL")
        assert isinstance(running.exception(10), ResponseError)


EXITS = "on_lost exits"  # in a task, SystemExit ends the event loop
FORCED = "on_lost raises", EXITS, "a receiver raises"
ROUND_FAULTS: dict[str, Callable[..., contextlib.AbstractContextManager[None]]] = {
    **dict.fromkeys(FORCED, force),
    "NOPERM": partial(
        refusing,
        ("ACL", "SETUSER", "default", "-evalsha", "-eval"),
        ("ACL", "SETUSER", "default", "+evalsha", "+eval"),
    ),
    # No server listens on that port.
    "READONLY": partial(refusing, ("REPLICAOF", "127.0.0.1", 1), ("REPLICAOF", "NO", "ONE")),
    "BUSY": busy,
}


def wait_for_failed_round(run: Run, holder: Client) -> None:
    log = run.setting.folder / f"{holder.who}.log"
    wait_until(lambda: "Renewal failed" in log.read_text())


# Orders for clients


def hold_all(
    client: own.Client, names: list[str], kind: str, is_async: bool, **options: Any
) -> dict[str, list[str]]:
    """Hold all locks until there is another order, and return the lost ones."""

    async def hold() -> list[str]:
        about = {"is_async": is_async, "on_lost": raiser(kind), **options}
        for name in names:
            assert await own.aacquire(client, name, **about)
        while not client.has_order():
            await own.pause(0.01, is_async)
        lost = [name for name in names if not own.check(client, name)]
        for name in set(names).difference(lost):
            await own.arelease(client, name, is_async)
        return lost

    return {"lost": own.run(hold(), is_async)}


def raiser(kind: str) -> Callable[[object], None] | None:
    """Return an `on_lost` callback that raises, or connect a signal receiver that does."""
    if kind == "a receiver raises":
        signals.lock_lost.connect(fail, weak=False)
    return {"on_lost raises": fail, EXITS: leave}.get(kind)


def fail(*about: object, **more: object) -> NoReturn:
    raise RuntimeError("the callback failed")


def leave(lock: object) -> NoReturn:
    raise SystemExit("on_lost ends the program")
