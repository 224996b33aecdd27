"""`locks show`: one lock, its holders, waiters and history, and what to do next."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.template.defaultfilters import pluralize

from ...advice import Advice, advice, deadlock_text, quorum_text
from ...lock_state import COOLDOWN, QUEUED, state_of_holding
from ...manager import LockManager
from ...sentences import headline, release_steps, renewal_text
from ...snapshots import Event, Holding, LockInfo, Waiter
from ...text import (
    age,
    holder_text,
    metadata_text,
    printable,
    short_duration,
    some,
    task_text,
)
from ...waits import Chain, Dependency, chain_of
from .. import formatting
from ..arguments import add_format, name
from ..output import write_paragraph, write_table

HELP = "Show one lock: its holders, its waiters, its history, and what to do next."

MAX_WAITERS, MAX_EVENTS = 100, 10

ROLES = {QUEUED: ("Sender", "sent", "queued"), COOLDOWN: ("Last holder", "acquired", "")}
"""Labels of a holder that does not work under the lock: the holder, and its two times."""


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("name", type=name, metavar="NAME", help="The lock's name.")
    add_format(parser, "text", "json")


def run(command: BaseCommand, manager: LockManager, options: dict[str, Any]) -> None:
    name, write = options["name"], command.stdout.write
    info, history = manager.get(name), manager.history(name, MAX_EVENTS)
    waiters = manager.queue(name, MAX_WAITERS) if info else ()
    if options["format"] == "json":
        free = LockInfo(name, kind="", capacity=0, state="free", waiters=0, longest_wait=0.0)
        facts = formatting.lock_facts(info) if info else asdict(free)
        facts["queue"] = [formatting.record_facts(waiter) for waiter in waiters]
        chain = chain_of(manager, info)
        facts["chain"] = [formatting.wait_facts(wait) for wait in chain.waits]
        facts["is_deadlock"] = bool(chain.deadlock)
        facts["history"] = [formatting.record_facts(event) for event in history]
        write(formatting.json_text(facts))
    elif info:
        found = advice(info, formatting.moment_text)
        write_lock(command, info, found)
        write_waiters(command, info, waiters)
        write_chain(command, chain_of(manager, info))
        write_history(command, history)
        absent = [] if waiters else ["Nobody waits."]
        absent += [] if history else ["No earlier event is recorded."]
        if absent:
            write("\n" + " ".join(absent))
        steps = [f"{found.next_step} {found.command}".strip(), *release_steps(manager, info)]
        if any(steps):
            write("\nNext: " + "\n".join(filter(None, steps)))
    elif history:
        write(f"{printable(name)} is free. {advice(None, formatting.moment_text).reason}")
        if history[0].kind == "quorum":
            write(quorum_text())
        write_history(command, history)
    if not (info or history):
        raise CommandError(f"{printable(name)} is not held, and has no history")


def write_lock(command: BaseCommand, info: LockInfo, found: Advice) -> None:
    paint = command.style.ERROR if info.is_stale else command.style.SUCCESS
    command.stdout.write(headline(info), paint)
    command.stdout.write(found.head, paint)
    write_paragraph(command, found.reason)
    for holding in info.holders:
        write_holding(command, info, holding)


def write_holding(command: BaseCommand, info: LockInfo, holding: Holding) -> None:
    state = state_of_holding(holding)
    role, since, how_long = ROLES.get(state, ("Holder", "acquired", "held for"))
    command.stdout.write(f"\n{role} {holder_text(holding)}", command.style.MIGRATE_HEADING)
    waited = f" (waited {short_duration(holding.waited)})" if holding.waited else ""
    left = short_duration(holding.ttl)
    lease = f"{left} of {short_duration(holding.timeout)} left, {renewal_text(holding)}"
    if holding.unconfirmed:
        lease = f"{short_duration(holding.timeout)}, {renewal_text(holding)}"
    lines = {
        "state": str(state.label) if len(info.holders) > 1 else "",
        "task": task_text(holding),
        since: formatting.moment_text(holding.acquired_at) + waited,
        how_long: short_duration(age(holding)) if holding.timeout else "",
        "lease": lease if holding.timeout else f"released; in cooldown for {left}",
        "fence": str(holding.fence_token),
        **share(info, holding),
        "metadata": "" if state is QUEUED else metadata_text(holding.metadata),
    }
    for label, text in lines.items():
        if text:
            command.stdout.write(f"  {label:9} {text}")


def write_waiters(command: BaseCommand, info: LockInfo, waiters: Sequence[Waiter]) -> None:
    if not waiters:
        return
    longest = short_duration(max(waiter.waited for waiter in waiters))
    title = f"\n{info.waiters} waiter{pluralize(info.waiters)}, the first for {longest}"
    command.stdout.write(title, command.style.MIGRATE_HEADING)
    header = "WAITS FOR", "WAITER", "TASK", *map(str.upper, share(info, waiters[0])), "METADATA"
    rows = [header]
    for waiter in waiters:
        who = holder_text(waiter), task_text(waiter) or "-", *share(info, waiter).values()
        metadata = metadata_text(waiter.metadata) or "-"
        rows.append((short_duration(waiter.waited), *who, metadata))
    if any(waiter.is_stored for waiter in waiters):
        places = "POSITION", *map(str, range(1, len(waiters) + 1))
        rows = [(place, *row) for place, row in zip(places, rows, strict=True)]
    write_table(command, rows)


def write_chain(command: BaseCommand, chain: Chain) -> None:
    if not chain.waits:
        return
    command.stdout.write("\nWho waits for whom", command.style.MIGRATE_HEADING)
    header = ("WAITER", "TASK", "HOLDS", "WAITS FOR", "HELD BY", "WAITED")
    write_table(command, [header, *map(wait_cells, chain.waits)])
    if chain.deadlock:
        command.stdout.write("Deadlock.", command.style.ERROR)
        write_paragraph(command, deadlock_text(len(chain.deadlock)))


def wait_cells(wait: Dependency) -> tuple[str, ...]:
    return (
        holder_text(wait.waiter),
        task_text(wait.waiter) or "-",
        some(map(printable, wait.also_holds)),
        printable(wait.name),
        some(map(holder_text, wait.holdings)),
        short_duration(wait.waiter.waited),
    )


def write_history(command: BaseCommand, history: Sequence[Event]) -> None:
    if history:
        latest = f", the latest {MAX_EVENTS} events" if len(history) == MAX_EVENTS else ""
        command.stdout.write(f"\nHistory{latest}", command.style.MIGRATE_HEADING)
        formatting.write_events(command, history)


def share(info: LockInfo, record: Holding | Waiter) -> dict[str, str]:
    """Return what a holder or waiter takes of a lock that can have several holders."""
    if info.kind == "readwrite":
        return {"access": "writes" if record.weight > 1 else "reads"}
    return {"weight": f"{record.weight} of {info.capacity}"} if info.capacity > 1 else {}
