"""Processes that fork while they hold a lock, or become another program."""

import multiprocessing
import os
import socket
import threading
import warnings
from pathlib import Path
from typing import Any

from django_redislock.clock import now
from tests.servers import Node
from tests.tools import wait_until

from .. import client as own
from ..crew import Client
from ..events import Log
from ..scenario import Run, Setting, scenario
from .killed import until_free

LEASES = 1.5, 2.0  # long enough that a busy machine alone does not lose them


UNTIL_FREE = until_free(max(LEASES))


@scenario(13, "Fork after acquire", runs=48, short=6, operations=8, free_within=UNTIL_FREE)
def fork(setting: Setting) -> None:
    """A holder forks while a thread of it waits for another lock. Its child has no part in
    either, and locks of its own. Then one of the two is killed."""
    node, crew = setting.node(), setting.crew()

    def body(run: Run) -> None:
        lease = run.random.uniform(*LEASES)
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
        child.ask("loop", lock=childs, times=3, timeout=lease, go_on=False)
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
    told = child.ask(f"{__name__}:tell", lock=lock)
    assert told == {"token": None, "fence_token": None, "lost": False, "owned": False}
    assert child.ask("release", lock=lock)["error"] == "LockNotOwnedError"
    assert child.ask("acquire", lock=lock, how={"blocking": False}) is False


def is_renewed(run: Run, node: Node, holder: Client) -> None:
    """It holds, and has its lease renewed."""
    last = run.info(node)
    assert last, "what the parent held was released"
    wait_until(lambda: (info := run.info(node)) and info.expires_at > last.expires_at)
    assert holder.ask(f"{__name__}:tell", lock=run.lock)["owned"] is True


def gets(client: Client, lock: str, lease: float) -> None:
    assert client.ask("acquire", lock=lock, timeout=lease) is True
    client.ask("release", lock=lock)


class Parent:
    """A client, as where clients come from: it forks them."""

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
            told = {"who": order["who"], "address": address, "way": self.way}
            pid = self.client.ask(f"{__name__}:fork_here", **told)
            orders, _ = listener.accept()
        orders.setblocking(True)
        return pid, orders


@scenario(13, "exec after acquire", runs=48, short=4, operations=2, free_within=UNTIL_FREE)
def execute(setting: Setting) -> None:
    """A holder becomes another program, which lives on. None of its connections does, and its
    lock comes free when its lease has run out."""
    node, crew = setting.node(), setting.crew()

    def body(run: Run) -> None:
        lease, name = run.random.uniform(*LEASES), f"run-{run.number}"
        holder = run.client(crew, "holder", node.url, client_name=name)
        waiter = run.client(crew, "waiter", node.url)
        holder.ask("acquire", lock=run.lock, timeout=lease)
        waiter.start("acquire", lock=run.lock, timeout=lease)
        waiter.wait_for("queued")
        run.moment(lease / 2)
        assert connections(node, name), "the holder's connections can't be told"
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


# What clients do


def wait_in_a_thread(client: own.Client, lock: str, **options: Any) -> None:
    def wait() -> None:
        own.acquire(client, lock, **options)
        own.release(client, lock)

    threading.Thread(target=wait).start()


def fork_here(client: own.Client, who: str, address: str, way: str) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # there are threads, that's the point
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
    """Go on as a client of that name, with all that the parent's has."""
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
    os.dup2(client.orders.fileno(), 0)  # it ends when this does
    os.execvp(PROGRAM[0], PROGRAM)  # noqa: S606  there is nothing for a shell in it
