"""`locks show`: one lock, its holders, waiters and history."""

import shlex
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_redislock.lock_state import (
    COOLDOWN,
    HANDOVER,
    LATE,
    QUEUED,
    STALE,
    overdue_for,
    primary_holder,
    queued_task,
    renewal_interval,
    state_of,
    state_of_holding,
    was_extended,
)
from django_redislock.management.arguments import NOT_DONE, name
from django_redislock.management.formatting import (
    json_text,
    lock_facts,
    metadata_text,
    moment_text,
    record_facts,
    renewal_text,
    similar_names_text,
    write_events,
)
from django_redislock.management.output import plain, write, write_table
from django_redislock.manager import LockManager
from django_redislock.snapshots import Holding, LockInfo, Waiter
from django_redislock.text import age, holder_text, printable, short_duration, task_text

HELP = "Show one lock: its holders, its waiters, its history, and what to do next."

MAX_WAITERS, MAX_EVENTS = 100, 10


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("name", type=name, metavar="NAME", help="The lock's name.")
    parser.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help="text, for people (the default); json has all fields, also the lock tokens.",
    )


def run(command: BaseCommand, manager: LockManager, options: dict[str, Any]) -> None:
    name = options["name"]
    info, history = manager.get(name), manager.history(name, MAX_EVENTS)
    waiters = manager.queue(name, MAX_WAITERS) if info else ()
    if options["format"] == "json":
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
    if options["format"] == "json":
        return
    if info:
        write_lock(command, info, waiters)
    else:
        write(command, f"{printable(name)} is free.")
    if history:
        write(command, "\nHistory", command.style.MIGRATE_HEADING)
        write_events(command, history)
    if info:
        write(command, f"\nNext: {next_step(info)}")


def write_lock(command: BaseCommand, info: LockInfo, waiters: tuple[Waiter, ...]) -> None:
    paint = command.style.ERROR if info.is_stale else command.style.SUCCESS
    for line in summary(info):
        write(command, line, paint)
    if waiters:
        longest = short_duration(max(waiter.waited for waiter in waiters))
        count = "1 waiter" if info.waiters == 1 else f"{info.waiters} waiters"
        write(command, f"{count}, the longest for {longest}.", paint)
    for holding in info.holders:
        write_holding(command, holding, info)
    if waiters:
        write(command, "\nWaiters", command.style.MIGRATE_HEADING)
        header = ("WAITS FOR", "HOLDER", "TASK", share(info)[0].upper(), "METADATA")
        rows = [
            (
                plain,
                (
                    short_duration(waiter.waited),
                    holder_text(waiter),
                    task_text(waiter) or "-",
                    share(info, waiter)[1],
                    metadata_text(waiter.metadata) or "-",
                ),
            )
            for waiter in waiters
        ]
        write_table(command, header, rows)


def summary(info: LockInfo) -> list[str]:
    """Return who holds the lock, and whether a release is safe."""
    held, state = primary_holder(info), state_of(info)
    lock = f"{printable(info.name)} ({info.kind})"
    if held is None:
        return [f"{lock} is being handed over to the next waiter."]
    left, duration = short_duration(held.ttl), short_duration(age(held))
    if state is COOLDOWN:
        return [f"{lock} was released, and is in cooldown for another {left}."]
    if queued := queued_task(held):
        effect = str(QUEUED.release)
        eta = f" It starts at {moment_text(queued.eta)} at the earliest." if queued.eta else ""
        return [
            f"{lock} is queued: {task_text(held)} was sent {duration} ago by {holder_text(held)}.",
            f"Queued: the task has not started.{eta} The queue lock expires in {left}."
            f" After a release, {effect[0].lower()}{effect[1:]}",
        ]
    holders = holder_text(held) if len(info.holders) == 1 else f"{len(info.holders)} holders"
    return [f"{lock} is held by {holders}, for {duration}; {renewal_text(held)}.", advice(held)]


def advice(holding: Holding) -> str:
    """Return whether releasing the lock is safe."""
    left, interval = short_duration(holding.ttl), short_duration(renewal_interval(holding))
    state = state_of_holding(holding)
    if state in (STALE, LATE):
        overdue = short_duration(overdue_for(holding))
        cause = "is dead or paused, or cannot reach Redis"
        if state is LATE:
            cause = "may be busy, paused or dead, or may not reach Redis"
        return (
            f"Renewal overdue for {overdue}: check the process first. Renewal was due every"
            f" {interval}. The holder {cause}. The lease expires in {left}."
        )
    if holding.renewed:
        return "In use: releasing is not safe. The process is running, but it may hang."
    if not holding.renews_later:
        text = "Not known whether releasing is safe: automatic renewal is off."
        return f"{text} The lease expires in {left}."
    if was_extended(holding):
        text = "Renewed before: check the process first."
        return f"{text} The lease expires in {left} unless it is renewed again."
    text = "Renewal starts later (at_least_for): not known whether releasing is safe."
    return f"{text} The lease expires in {left} unless it is renewed then."


def next_step(info: LockInfo) -> str:
    """Return what an operator should do about a lock that blocks something."""
    held, state = primary_holder(info), state_of(info)
    if held is None or state is HANDOVER:
        return "show the lock again."
    release = f"locks release {shlex.quote(info.name)}"
    if printable(info.name) != info.name:  # nobody could type it
        release = "locks release --pattern, with ? for each escape in the name"
    left, holder = short_duration(held.ttl), held.holder
    if state is COOLDOWN:
        return f"wait {left}, or end the cooldown now: {release}"
    if queued := queued_task(held):
        queue = f" {printable(queued.broker_queue)}" if queued.broker_queue else ""
        return (
            f"check that the message is still in the broker queue{queue}, and that a worker"
            f" consumes it. If the message is gone: {release}"
        )
    host = printable(holder.host or "its host")
    if state in (STALE, LATE):
        return (
            f"check whether the process exists, on {host}: ps -p {holder.pid or 'PID'}. If it is"
            f" gone, wait {left}, or: {release}"
        )
    task = f", or inspect task {printable(holder.task_id)}" if holder.task_id else ""
    return f"see what the process does, on {host}: py-spy dump --pid {holder.pid or 'PID'}{task}"


def write_holding(command: BaseCommand, holding: Holding, info: LockInfo) -> None:
    role = "Sender" if queued_task(holding) else "Holder"
    write(command, f"\n{role} {holder_text(holding)}", command.style.MIGRATE_HEADING)
    waited = f" (waited {short_duration(holding.waited)})" if holding.waited else ""
    left = short_duration(holding.ttl)
    lease = f"{left} of {short_duration(holding.timeout)} left, {renewal_text(holding)}"
    label, text = share(info, holding)
    lines = {
        "task": task_text(holding),
        "acquired": moment_text(holding.acquired_at) + waited,
        "held for": short_duration(age(holding)) if holding.timeout else "",
        "lease": lease if holding.timeout else f"released; in cooldown for {left}",
        "fence": str(holding.fence_token),
        label: f"{text} of {info.capacity}" if label == "weight" else text,
        "metadata": metadata_text(holding.metadata),
    }
    if info.capacity == 1:
        del lines[label]
    for label, text in lines.items():
        if text:
            write(command, f"  {label:9} {text}")


def share(info: LockInfo, record: Holding | Waiter | None = None) -> tuple[str, str]:
    """Return which part of the lock's capacity a record has: a label and a text."""
    weight = record.weight if record else 0
    if info.kind == "readwrite":
        return "access", "writes" if weight > 1 else "reads"
    return "weight", str(weight)
