"""`locks show`: one lock, its holders, waiters and history, and what to do next."""

import shlex
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...advice import advice
from ...lock_state import (
    COOLDOWN,
    HANDOVER,
    LATE,
    QUEUED,
    STALE,
    UNRENEWED,
    primary_holder,
    state_of,
    state_of_holding,
)
from ...manager import LockManager, locks
from ...snapshots import Holding, LockInfo, Waiter
from ...text import age, holder_text, printable, short_duration, task_text
from ..arguments import NOT_DONE, add_format, name
from ..formatting import (
    json_text,
    lock_facts,
    metadata_text,
    moment_text,
    record_facts,
    renewal_text,
    similar_names_text,
    write_events,
)
from ..output import plain, write, write_table

HELP = "Show one lock: its holders, its waiters, its history, and what to do next."

MAX_WAITERS, MAX_EVENTS = 100, 10

RELEASE_IF = {
    STALE.code: "If the process is gone",
    LATE.code: "If the process is gone",
    UNRENEWED.code: "If the process is gone",
    QUEUED.code: "If the message is gone",
    COOLDOWN.code: "To end the cooldown now",
}
"""When a release is the answer, by the state of the lock."""


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("name", type=name, metavar="NAME", help="The lock's name.")
    add_format(parser, "text", "json")


def run(command: BaseCommand, manager: LockManager, options: dict[str, Any]) -> None:
    name, is_json = options["name"], options["format"] == "json"
    info, history = manager.get(name), manager.history(name, MAX_EVENTS)
    waiters = manager.queue(name, MAX_WAITERS) if info else ()
    if is_json:
        free = {"name": name, "kind": None, "capacity": None, "state": "free", "waiters": 0}
        facts = {
            **(lock_facts(info) if info else {**free, "holders": []}),
            "queue": [record_facts(waiter) for waiter in waiters],
            "history": [record_facts(event) for event in history],
        }
        command.stdout.write(json_text(facts))
    if info is None and not history:
        unknown = f"{printable(name)} is not held, and has no history"
        raise CommandError(unknown + similar_names_text(manager, name), returncode=NOT_DONE)
    if is_json:
        return
    found = advice(info, moment_text)
    if info:
        paint = command.style.ERROR if info.is_stale else command.style.SUCCESS
        write(command, headline(info), paint)
        write(command, found.head, paint)
        write(command, found.reason)
        for holding in info.holders:
            write_holding(command, info, holding)
        if waiters:
            write_waiters(command, info, waiters)
    else:
        write(command, f"{printable(name)} is free. {found.reason}")
    if history:
        write(command, "\nHistory", command.style.MIGRATE_HEADING)
        write_events(command, history)
    if info and (steps := next_steps(manager, info, found.next_step)):
        write(command, "\nNext: " + "\n".join(steps))


def headline(info: LockInfo) -> str:
    """Return who holds the lock."""
    lock = f"{printable(info.name)} ({info.kind})"
    held, state = primary_holder(info), state_of(info)
    if held is None:
        return f"{lock} is being handed over."
    if state is COOLDOWN:
        return f"{lock} was released."
    if state is QUEUED:
        return f"{lock} is queued: {task_text(held)} was sent {short_duration(age(held))} ago."
    holders = holder_text(held) if len(info.holders) == 1 else f"{len(info.holders)} holders"
    return f"{lock} is held by {holders}, for {short_duration(age(held))}."


def next_steps(manager: LockManager, info: LockInfo, step: str) -> list[str]:
    """Return what to do: the step of the advice, and the command that releases the lock."""
    state = state_of(info)
    if state is HANDOVER:
        return ["Show the lock again."]
    steps = [step] if step else []
    # Of several holders, the others may be running.
    is_safe = len(info.holders) == 1 or state in (STALE, COOLDOWN)
    if is_safe and (condition := RELEASE_IF.get(state.code)):
        steps.append(f"{condition}, run: {release_command(manager, info)}")
    return steps


def release_command(manager: LockManager, info: LockInfo) -> str:
    """Return the command that releases the lock, ready for a shell."""
    arguments = ["manage.py", "locks", "release"]
    if manager.alias != locks.alias:
        arguments.append(f"--using={manager.alias}")
    if len(info.holders) > 1 and state_of(info) is STALE:
        arguments.append("--stale")
    if not info.name.isprintable():  # nobody could type it
        typed = (char if char.isprintable() and char != "*" else "?" for char in info.name)
        arguments.append(f"--pattern={''.join(typed)}")
    else:
        arguments += ["--", info.name] if info.name.startswith("-") else [info.name]
    return shlex.join(arguments)


def write_holding(command: BaseCommand, info: LockInfo, holding: Holding) -> None:
    roles = {QUEUED: "Sender", COOLDOWN: "Last holder"}
    role = roles.get(state_of_holding(holding), "Holder")
    write(command, f"\n{role} {holder_text(holding)}", command.style.MIGRATE_HEADING)
    waited = f" (waited {short_duration(holding.waited)})" if holding.waited else ""
    left = short_duration(holding.ttl)
    lease = f"{left} of {short_duration(holding.timeout)} left, {renewal_text(holding)}"
    lines = {
        "task": task_text(holding),
        "acquired": moment_text(holding.acquired_at) + waited,
        "held for": short_duration(age(holding)) if holding.timeout else "",
        "lease": lease if holding.timeout else f"released; in cooldown for {left}",
        "fence": str(holding.fence_token),
    }
    lines |= share(info, holding)
    lines["metadata"] = metadata_text(holding.metadata)
    for label, text in lines.items():
        if text:
            write(command, f"  {label:9} {text}")


def write_waiters(command: BaseCommand, info: LockInfo, waiters: tuple[Waiter, ...]) -> None:
    longest = short_duration(max(waiter.waited for waiter in waiters))
    count = "1 waiter" if info.waiters == 1 else f"{info.waiters} waiters"
    write(command, f"\n{count}, the first for {longest}", command.style.MIGRATE_HEADING)
    header = "WAITS FOR", "WAITER", "TASK", *map(str.upper, share(info, waiters[0])), "METADATA"
    rows = [
        (
            plain,
            (
                short_duration(waiter.waited),
                holder_text(waiter),
                task_text(waiter) or "-",
                *share(info, waiter).values(),
                metadata_text(waiter.metadata) or "-",
            ),
        )
        for waiter in waiters
    ]
    write_table(command, header, rows)


def share(info: LockInfo, record: Holding | Waiter) -> dict[str, str]:
    """Return what a holder or waiter takes of a lock that can have several holders."""
    if info.kind == "readwrite":
        return {"access": "writes" if record.weight > 1 else "reads"}
    return {"weight": f"{record.weight} of {info.capacity}"} if info.capacity > 1 else {}
