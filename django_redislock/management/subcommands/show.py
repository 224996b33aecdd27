"""`locks show`: all that is known of one lock."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_redislock.info import Event, Holding, LockInfo, Waiter
from django_redislock.management.arguments import NOT_DONE, name
from django_redislock.management.presenting import (
    EVENT_HEADER,
    event_rows,
    json_text,
    lock_facts,
    metadata_text,
    moment_text,
    outlives_lease,
    told_facts,
    unrenewed_text,
)
from django_redislock.management.terminal import Paint, plain, write, write_table
from django_redislock.manager import LockManager
from django_redislock.text import (
    age,
    holder_text,
    printable,
    short_duration,
    shown_of,
    task_text,
)

HELP = "Show one lock: who holds it, who waits, and what became of it before."

QUEUE, EVENTS = 100, 10
"""How many waiters and events are shown."""


class Known(NamedTuple):
    name: str
    info: LockInfo | None
    queue: tuple[Waiter, ...]
    history: tuple[Event, ...]

    @property
    def is_nothing(self) -> bool:
        return self.info is None and not self.history


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("name", type=name, metavar="NAME", help="The lock's name.")
    parser.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help="text, for people (the default); json has all there is to know, the owners'"
        " tokens too.",
    )


def run(command: BaseCommand, manager: LockManager, options: dict[str, Any]) -> None:
    known = look(manager, options["name"])
    if options["format"] == "json":
        command.stdout.write(json_text(facts(known)))
    elif not known.is_nothing:
        tell(command, known)
    if known.is_nothing:
        refusal = f"{printable(known.name)} is not held, and has no history"
        raise CommandError(refusal, returncode=NOT_DONE)


def look(manager: LockManager, name: str) -> Known:
    info, history = manager.get(name), manager.history(name, EVENTS)
    return Known(name, info, manager.queue(name, QUEUE) if info else (), history)


def facts(known: Known) -> dict[str, Any]:
    free = {"name": known.name, "kind": None, "capacity": None, "state": "free", "waiters": 0}
    return {
        **(lock_facts(known.info) if known.info else {**free, "holders": []}),
        "queue": [told_facts(waiter) for waiter in known.queue],
        "history": [told_facts(event) for event in known.history],
    }


def tell(command: BaseCommand, known: Known) -> None:
    for line in sentences(known):
        write(command, line, paint_of(command, known.info))
    if known.info:
        for holding in known.info.holders:
            tell_holding(command, holding, known.info)
    if known.info and known.queue:
        tell_queue(command, known.queue, known.info)
    if known.history:
        head(command, "Lately")
        write_table(command, EVENT_HEADER, event_rows(known.history, command.style))


def tell_queue(command: BaseCommand, queue: Iterable[Waiter], info: LockInfo) -> None:
    head(command, "Queue")
    header = ("WAITS FOR", "HOLDER", "TASK", share_label(info).upper(), "METADATA")
    write_table(command, header, [(plain, waiter_cells(waiter, info)) for waiter in queue])


def head(command: BaseCommand, text: str) -> None:
    write(command, "")
    write(command, text, command.style.MIGRATE_HEADING)


def paint_of(command: BaseCommand, info: LockInfo | None) -> Paint:
    if info is None:
        return plain
    return command.style.ERROR if info.is_stale else command.style.SUCCESS


def sentences(known: Known) -> Sequence[str]:
    shown = printable(known.name)
    if known.info is None:
        return [f"{shown} is free."]
    said = [f"{shown} {state_text(known.info)}"]
    waiters = known.info.waiters
    if known.queue and waiters:
        longest = short_duration(max(waiter.waited for waiter in known.queue))
        waits = "1 waits" if waiters == 1 else f"{waiters} wait"
        said.append(f"{waits} for it, the longest for {longest}.")
    return said


def state_text(info: LockInfo) -> str:
    held = shown_of(info)
    if held is None:
        return f"({info.kind}) is between two holders."
    left = short_duration(held.ttl)
    if info.state == "cooldown":
        return f"({info.kind}) was released, and stays taken for another {left}."
    since = f"({info.kind}) is held by {by_text(info)}, for {short_duration(age(held))}"
    if held.is_stale:
        return (
            f"{since}, but a renewal is overdue: that holder is dead, paused, or can't reach"
            f" Redis. Its lease ends in {left}."
        )
    if held.renewed:
        return f"{since}; its lease is renewed."
    if outlives_lease(held):
        return f"{since}; its lease ends in {left}, unless it is renewed again."
    return f"{since}; its lease ends in {left}, as it is not renewed so far."


def by_text(info: LockInfo) -> str:
    if len(info.holders) > 1:
        return f"{len(info.holders)} holders"
    return "".join(map(holder_text, info.holders))


def tell_holding(command: BaseCommand, holding: Holding, info: LockInfo) -> None:
    head(command, f"Holder {holder_text(holding)}")
    waited = f" (waited {short_duration(holding.waited)})" if holding.waited else ""
    lines = {
        "task": task_text(holding),
        "acquired": moment_text(holding.acquired_at) + waited,
        "held for": short_duration(age(holding)) if holding.timeout else "",
        "lease": lease_text(holding),
        "fence": str(holding.fence_token),
        share_label(info): share_text(holding, info),
        "metadata": metadata_text(holding.metadata),
    }
    for label, text in lines.items():
        if text:
            write(command, f"  {label:9} {text}")


def lease_text(holding: Holding) -> str:
    left = short_duration(holding.ttl)
    if not holding.timeout:
        return f"released; cools down for {left}"
    lasts = f"{left} of {short_duration(holding.timeout)} left"
    if holding.is_stale:
        return f"{lasts}, renewal overdue"
    return f"{lasts}, renewed" if holding.renewed else f"{lasts}, {unrenewed_text(holding)}"


def share_label(info: LockInfo) -> str:
    return "access" if info.kind == "readwrite" else "weight"


def share_text(holding: Holding, info: LockInfo) -> str:
    if info.kind == "readwrite":
        return access_text(holding)
    return f"{holding.weight} of {info.capacity}" if info.capacity > 1 else ""


def access_text(told: Holding | Waiter) -> str:
    return "writes" if told.weight > 1 else "reads"


def waiter_cells(waiter: Waiter, info: LockInfo) -> tuple[str, ...]:
    return (
        short_duration(waiter.waited),
        holder_text(waiter),
        task_text(waiter) or "-",
        access_text(waiter) if info.kind == "readwrite" else str(waiter.weight),
        metadata_text(waiter.metadata) or "-",
    )
