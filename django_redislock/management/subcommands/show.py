"""`locks show`: all that is known of one lock."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_redislock.lock_state import (
    is_overdue,
    overdue_for,
    primary_holder,
    renewal_interval,
    was_extended,
)
from django_redislock.management.arguments import NOT_DONE, name
from django_redislock.management.presenting import (
    json_text,
    lock_facts,
    metadata_text,
    moment_text,
    renewal_text,
    told_facts,
    write_events,
)
from django_redislock.management.terminal import Paint, plain, write, write_table
from django_redislock.manager import LockManager
from django_redislock.snapshots import Event, Holding, LockInfo, Waiter
from django_redislock.text import age, holder_text, printable, short_duration, task_text

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
        write_events(command, known.history)


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
    if known.info.state == "held" and (held := primary_holder(known.info)):
        said.append(advice(held))
    waiters = known.info.waiters
    if known.queue and waiters:
        longest = short_duration(max(waiter.waited for waiter in known.queue))
        waits = "1 waits" if waiters == 1 else f"{waiters} wait"
        said.append(f"{waits} for it, the longest for {longest}.")
    return said


def state_text(info: LockInfo) -> str:
    held = primary_holder(info)
    if held is None:
        return f"({info.kind}) is between two holders."
    left = short_duration(held.ttl)
    if info.state == "cooldown":
        return f"({info.kind}) was released, and stays taken for another {left}."
    since = f"({info.kind}) is held by {by_text(info)}, for {short_duration(age(held))}"
    return f"{since}; {renewal_text(held)}."


def advice(holding: Holding) -> str:
    """Return whether releasing the lock is safe, as the admin's page of the lock says."""
    left, interval = short_duration(holding.ttl), short_duration(renewal_interval(holding))
    if is_overdue(holding):
        overdue = short_duration(overdue_for(holding))
        state = "is dead or paused, or cannot reach Redis"
        if not holding.is_stale:
            state = "may be busy, paused or dead, or may not reach Redis"
        return (
            f"Renewal overdue for {overdue}: check the process first. Renewal was due every"
            f" {interval}. The holder {state}. The lease expires in {left}."
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
    return f"{left} of {short_duration(holding.timeout)} left, {renewal_text(holding)}"


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
