"""Processes and servers pause for longer than a lease, and then continue."""

import json
import os
import signal
from typing import Any

from django_redislock.engine.timing import HEARTBEAT_SECONDS
from tests.fencing import postgres

from ..client import Client
from ..crew import Crew
from ..judge import AT_ONCE
from ..scenario import Run, Setting, Shared, scenario
from .killed import LEASES, UNTIL_FREE, take_turns, until_free

LONG_LEASES = 1.0, 1.5  # long enough for the setup on a busy machine


@scenario(
    2,
    "SIGSTOP past the lease, then SIGCONT",
    runs=200,
    short=6,
    operations=3,
    free_within=UNTIL_FREE,
)
def frozen(setting: Setting) -> None:
    """Three clients take turns. One is stopped at a random point, usually while it holds."""
    node, crew = setting.node(), setting.crew()

    def body(run: Run) -> None:
        lease = run.random.uniform(*LEASES)
        clients = take_turns(run, crew, node, lease)
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


FACTS = {
    "operations": 2,
    "free_within": until_free(max(LONG_LEASES)),
    "wake_within": AT_ONCE + HEARTBEAT_SECONDS,
}


@scenario(3, "Pause between check and write", runs=150, short=6, **FACTS)
def between_check_and_write(setting: Setting) -> None:
    """A client checks its lock, is stopped while the next holder writes, and then writes."""
    write_late(setting, setting.crew(), 6, "write", {"between": "stop"})
    setting.notes.append("without a fencing token, every late write succeeded")


@scenario(3, "Pause between check and write, PostgreSQL", runs=100, short=4, **FACTS)
def between_check_and_update(setting: Setting) -> None:
    """The same, with database rows that are written through `django_redislock.fencing`."""
    database = postgres.database(setting.use(postgres.running()))
    setting.use(postgres.migrated("postgres", database))
    crew = setting.crew(TESTS_DATABASES=json.dumps({"postgres": database}))
    write_late(setting, crew, 4, f"{__name__}:write_rows", {"stop": True}, f"{__name__}:make_rows")


def write_late(
    setting: Setting, crew: Crew, lanes: int, write: str, stop: dict[str, Any], first: str = ""
) -> None:
    """Let the late client stop itself in `write`, and the other client write before it resumes."""
    node = setting.node()

    def body(run: Run) -> None:
        late, other = run.clients(crew, node, "late", "other")
        if first:
            late.ask(first, lock=run.lock)
        late.ask("acquire", lock=run.lock, timeout=run.random.uniform(*LONG_LEASES))
        other.start("acquire", lock=run.lock)
        other.wait_for("queued")
        late.start(write, lock=run.lock, **stop)
        late.stops_itself()
        assert other.answer()
        assert other.ask(write, lock=run.lock) == {"wrote": True, "accepted": True}
        late.resume()
        assert late.answer() == {"wrote": True, "accepted": False}
        assert late.ask("release", lock=run.lock)["error"] == "LockLost"
        assert other.ask(write, lock=run.lock) == {"wrote": True, "accepted": True}
        other.ask("release", lock=run.lock)

    setting.each(body, lanes=lanes)


# Orders for clients


def rows(lock: str) -> tuple[Any, Any]:
    """Return a row with a fence and a row without one. Each counts its writes."""
    from tests.fencing.models import Account

    accounts = Account.objects.using("postgres")
    return accounts.filter(note=lock), accounts.filter(note=f"{lock} without a fence")


def make_rows(client: Client, lock: str) -> None:
    fenced_row, _ = rows(lock)
    for note in (lock, f"{lock} without a fence"):
        fenced_row.create(note=note)


def write_rows(client: Client, lock: str, stop: bool = False) -> dict[str, bool]:
    """Write to both rows, and return whether the fence accepted the write. With `stop`, stop this
    process before the first UPDATE, after the check of the lock."""
    from django.db import connections, transaction
    from django.db.models import F

    from django_redislock import StaleLock
    from django_redislock.fencing import fenced

    fenced_row, plain_row = rows(lock)
    held, accepted, place = client.held[lock], True, 0
    about = {"lock": lock, "register": "row", "fence": held.fence_token}
    stops = iter([True] * stop)

    def stop_once(execute: Any, sql: str, *rest: Any) -> Any:
        if sql.startswith("UPDATE") and next(stops, False):
            os.kill(os.getpid(), signal.SIGSTOP)
        return execute(sql, *rest)

    with connections["postgres"].execute_wrapper(stop_once):
        try:
            with transaction.atomic(using="postgres"):
                fenced(fenced_row, held).update(balance=F("balance") + 1)
                place = fenced_row.get().balance
        except StaleLock:
            accepted = False
        client.log.write("write", fenced=True, accepted=accepted, place=place, **about)
        with transaction.atomic(using="postgres"):
            plain_row.update(balance=F("balance") + 1)
            place = plain_row.get().balance
        client.log.write("write", fenced=False, place=place, **about)
    return {"wrote": True, "accepted": accepted}


@scenario(
    10, "Redis paused past the lease", runs=100, short=4, operations=3, free_within=UNTIL_FREE
)
def paused(setting: Setting) -> None:
    """Three clients take turns while the server pauses for longer than the lease."""
    nodes, crew = Shared(setting.node() for _ in range(4)), setting.crew()

    def body(run: Run) -> None:
        lease = run.random.uniform(*LEASES)
        with nodes.one() as node:
            work = lease / int(os.environ.get("WAITERS", 1))
            clients = take_turns(run, crew, node, lease, work=(0, work))
            run.random.choice(clients).wait_for("held")
            run.moment(lease)
            with run.paused(node):
                run.moment(lease * 2.5, shortest=lease * 1.2)
            back = run.free()
            for client in clients:
                client.wait_for("held", after=back)

    setting.each(body, lanes=4)
