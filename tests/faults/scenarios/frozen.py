"""Processes that stand still for longer than their lease, and then go on."""

import json
import os
import signal
from typing import Any

from django_redislock.engine.flows import SLICE
from tests.fencing import postgres

from ..checker import AT_ONCE
from ..client import Client
from ..register import Row
from ..scenario import Run, Setting, scenario
from .killed import GRACE, LEASES

LONG_LEASES = 1.0, 1.5
"""Long enough to be kept on a busy machine until all is set up."""


@scenario(
    2,
    "SIGSTOP past the lease, then SIGCONT",
    runs=200,
    short=6,
    operations=3,
    free_within=max(LEASES) + 0.5 + GRACE,
)
def frozen(setting: Setting) -> None:
    """Three clients take turns. One stands still anywhere on its way, mostly while it holds."""
    node, crew = setting.node(), setting.crew()

    def body(run: Run) -> None:
        lease = run.random.uniform(*LEASES)
        clients = [run.client(crew, who, node.url) for who in ("first", "second", "third")]
        for client in clients:
            client.start("loop", lock=run.lock, timeout=lease, work=(0.01, 0.04))
        victim, *others = run.random.sample(clients, 3)
        if run.random.random() < 0.8:
            stopped = victim.catch("checked")
        else:
            victim.wait_for("held")
            run.moment(0.2)
            stopped = victim.stop()
        run.moment(lease * 2, shortest=lease * 1.1)
        for other in others:
            other.wait_for("held", after=stopped["t"])
        resumed = victim.resume()
        for client in clients:
            client.wait_for("released", after=resumed["t"])

    setting.each(body, lanes=6)


@scenario(
    3,
    "Pause between check and write",
    runs=150,
    short=6,
    operations=2,
    free_within=max(LONG_LEASES) + 0.5 + GRACE,
    wake_within=AT_ONCE + SLICE,
)
def between_check_and_write(setting: Setting) -> None:
    """A client looks whether it holds the lock, stands still while another one writes, and then
    writes what it was about to write."""
    node, crew = setting.node(), setting.crew()

    def body(run: Run) -> None:
        late, other = (run.client(crew, who, node.url) for who in ("late", "other"))
        late.ask("acquire", lock=run.lock, timeout=run.random.uniform(*LONG_LEASES))
        other.start("acquire", lock=run.lock)
        other.wait_for("queued")
        late.start("write", lock=run.lock, between="stop")
        late.stops_itself()
        assert other.answer()
        assert other.ask("write", lock=run.lock) == {"wrote": True, "accepted": True}
        late.resume()
        assert late.answer() == {"wrote": True, "accepted": False}
        assert late.ask("release", lock=run.lock)["error"] == "LockLost"
        assert other.ask("write", lock=run.lock) == {"wrote": True, "accepted": True}
        other.ask("release", lock=run.lock)

    setting.each(body, lanes=6)
    setting.notes.append("each late write went into the register without a fence")


@scenario(
    3,
    "Pause between check and write, PostgreSQL",
    runs=100,
    short=4,
    operations=2,
    free_within=max(LONG_LEASES) + 0.5 + GRACE,
    wake_within=AT_ONCE + SLICE,
)
def between_check_and_update(setting: Setting) -> None:
    """The same, with rows of a database that are written through `django_redislock.fencing`."""
    database = postgres.database(setting.use(postgres.running()))
    setting.use(postgres.migrated("postgres", database))
    node, crew = setting.node(), setting.crew(TESTS_DATABASES=json.dumps({"postgres": database}))

    def body(run: Run) -> None:
        late, other = (run.client(crew, who, node.url) for who in ("late", "other"))
        late.ask(MAKE_ROWS, lock=run.lock)
        late.ask("acquire", lock=run.lock, timeout=run.random.uniform(*LONG_LEASES))
        other.start("acquire", lock=run.lock)
        other.wait_for("queued")
        late.start(WRITE_ROWS, lock=run.lock, stop=True)
        late.stops_itself()
        assert other.answer()
        assert other.ask(WRITE_ROWS, lock=run.lock)
        late.resume()
        assert late.answer() is False
        assert late.ask("release", lock=run.lock)["error"] == "LockLost"
        assert other.ask(WRITE_ROWS, lock=run.lock)
        other.ask("release", lock=run.lock)

    setting.each(body, lanes=4)


# What clients do

MAKE_ROWS = f"{__name__}:make_rows"
WRITE_ROWS = f"{__name__}:write_rows"


def make_rows(client: Client, lock: str) -> None:
    Row("postgres", lock).make()


def write_rows(client: Client, lock: str, stop: bool = False) -> bool:
    """Write to the row with a fence and to the one without; whether the fence let it through.
    Before its first UPDATE, when it has asked its lock, it may stop itself."""
    from django.db import connections

    stops = Stop() if stop else _go_on
    with connections["postgres"].execute_wrapper(stops):
        held = client.held[lock]
        row = Row("postgres", lock)
        about = {"lock": lock, "register": "row", "fence": held.fence_token}
        place = row.write(held)
        accepted = place > 0
        client.log.write("write", fenced=True, accepted=accepted, place=place, **about)
        client.log.write("write", fenced=False, place=row.write_without(), **about)
    return accepted


class Stop:
    """Before the first UPDATE."""

    done = False

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("UPDATE") and not self.done:
            self.done = True
            os.kill(os.getpid(), signal.SIGSTOP)
        return execute(sql, params, many, context)


def _go_on(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
    return execute(sql, params, many, context)
