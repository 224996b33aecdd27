"""`locks show`: one lock, its holders, waiters and history, and what to do next."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.template.defaultfilters import pluralize

from ...advice import Advice, advice, deadlock_text, quorum_text
from ...lock_state import state_of_holding
from ...manager import LockManager
from ...sentences import (
    headline,
    holder_facts,
    record_metadata_text,
    release_steps,
    share,
)
from ...snapshots import Event, Holding, LockInfo, Waiter
from ...text import (
    holder_text,
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


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("name", type=name, metavar="NAME", help="The lock's name.")
    add_format(parser, "text", "json")


def run(command: BaseCommand, manager: LockManager, options: dict[str, Any]) -> None:
    name, write = options["name"], command.stdout.write
    info, history = manager.get(name), manager.history(name, MAX_EVENTS)
    waiters = manager.queue(name, MAX_WAITERS) if info else ()
    chain = chain_of(manager, info)
    if options["format"] == "json":
        free = LockInfo(name, kind="", capacity=0, state="free", waiters=0, longest_wait=0.0)
        facts = formatting.lock_facts(info) if info else asdict(free)
        facts["queue"] = [*map(formatting.record_facts, waiters)]
        facts["chain"] = [*map(formatting.wait_facts, chain.waits)]
        facts["is_deadlock"] = bool(chain.deadlock)
        facts["history"] = [*map(formatting.record_facts, history)]
        write(formatting.json_text(facts))
    elif info:
        found = advice(info, formatting.moment_text)
        write_lock(command, info, found, deadlock_text(len(chain.deadlock)))
        write_waiters(command, info, waiters)
        write_chain(command, chain)
        write_history(command, history)
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


def write_lock(command: BaseCommand, info: LockInfo, found: Advice, deadlock: str) -> None:
    paint = command.style.ERROR if info.is_stale or deadlock else command.style.SUCCESS
    command.stdout.write(headline(info), paint)
    if deadlock:
        write_paragraph(command, f"Deadlock: {deadlock}")
    command.stdout.write(found.head, paint)
    write_paragraph(command, found.reason)
    for holding in info.holders:
        write_holding(command, info, holding)


def write_holding(command: BaseCommand, info: LockInfo, holding: Holding) -> None:
    facts = holder_facts(info, holding, formatting.moment_text)
    (role, who), *others = facts.items()
    title = f"\n{role} {who}: {state_of_holding(holding).label}"
    command.stdout.write(title, command.style.MIGRATE_HEADING)
    for label, text in (*others, ("Metadata", record_metadata_text(holding) or "-")):
        command.stdout.write(f"  {label:13} {text}")


def write_waiters(command: BaseCommand, info: LockInfo, waiters: Sequence[Waiter]) -> None:
    title = f"\n{info.waiters} waiter{pluralize(info.waiters)}"
    command.stdout.write(title, command.style.MIGRATE_HEADING)
    if waiters:
        taken = map(str.upper, share(info, waiters[0]))
        header = ("POSITION", "WAITS FOR", "WAITER", "TASK", *taken, "METADATA")
        rows = (waiter_cells(info, *each) for each in enumerate(waiters, 1))
        write_table(command, [header, *rows])


def waiter_cells(info: LockInfo, position: int, waiter: Waiter) -> tuple[str, ...]:
    return (
        str(position),
        short_duration(waiter.waited),
        holder_text(waiter),
        task_text(waiter) or "-",
        *share(info, waiter).values(),
        record_metadata_text(waiter) or "-",
    )


def write_chain(command: BaseCommand, chain: Chain) -> None:
    if not chain.waits:
        return
    command.stdout.write("\nWho waits for whom", command.style.MIGRATE_HEADING)
    header = ("WAITER", "TASK", "HOLDS", "WAITS FOR", "HELD BY", "WAITED")
    write_table(command, [header, *map(wait_cells, chain.waits)])


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
