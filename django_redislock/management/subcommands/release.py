"""`locks release`: force-release locks, after a confirmation."""

import getpass
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.template.defaultfilters import pluralize
from redis.exceptions import RedisError

from ...advice import quorum_text
from ...lock_state import QUEUED, LockState, process_of, state_of_holding
from ...manager import LockManager
from ...sentences import hold_text, queue_texts
from ...snapshots import Holding, LockInfo, Waiter
from ...text import age, any_of, error_text, printable, short_duration, task_text
from ..arguments import NOT_DONE, USAGE, add_process, duration, name, pattern, reason
from ..output import checked_output

HELP = "Force-release locks. This does not stop their holders."

MAX_CONFIRMED = 1000
"""The largest number of holds that a user can confirm, so that they take little memory."""


MAX_SEARCHED = 10_000
"""The largest number of waiters of a lock among which a token is looked for."""


FILTERS: dict[str, Callable[[Any, Holding], bool]] = {
    "token": lambda token, each: token in (each.token, each.stored_token),
    "older_than": lambda seconds, each: age(each) > seconds,
    # A queued task runs in no process yet.
    "host": lambda host, each: process_of(each).rpartition(":")[0] == host,
    "process": lambda process, each: process_of(each) == process,
    "task": lambda task, each: any(map(any_of((task,)).match, tasks_of(each))),
    "stale": lambda _, each: each.is_stale,
}
"""The options that select holders, and whether their value selects one."""


class SelectedHold(NamedTuple):
    """A hold to release, and the text of its line."""

    name: str
    stored_token: str
    text: str
    state: LockState
    freed: LockInfo | None = None
    """The lock that its release frees. None for a place in a queue."""

    @classmethod
    def of(cls, info: LockInfo, holding: Holding) -> "SelectedHold":
        text = hold_text(info.name, holding)
        if info.kind == "quorum":
            text += f". {quorum_text()}"
        return cls(info.name, holding.stored_token, text, state_of_holding(holding), info)

    @classmethod
    def of_stored(cls, info: LockInfo, waiter: Waiter) -> "SelectedHold":
        """Return a task that waits in the queue without a process."""
        waited = short_duration(waiter.waited)
        text = f"{printable(info.name)} ({task_text(waiter)}, stored for {waited})"
        return cls(info.name, waiter.stored_token, text, QUEUED)


def add_arguments(parser: CommandParser) -> None:
    which = parser.add_mutually_exclusive_group()
    help_text = "A lock's name."
    which.add_argument("names", nargs="*", default=(), type=name, metavar="NAME", help=help_text)
    which.add_argument("--pattern", type=pattern, metavar="P", help="All names that match P.")
    which.add_argument("--all", action="store_true", help="All locks.")
    help_text = "Only holders that have held for longer than D: 90s, 5m, 2h, 1d, or plain seconds."
    parser.add_argument("--older-than", type=duration, metavar="D", help=help_text)
    help_text = "Only holders on this host, but not the tasks that it has only sent."
    parser.add_argument("--host", metavar="H", help=help_text)
    add_process(parser)
    help_text = "Only holders that run this task: its name, a pattern of names, or its id."
    parser.add_argument("--task", type=pattern, metavar="T", help=help_text)
    parser.add_argument("--stale", action="store_const", const=True, help="Only stale holders.")
    parser.add_argument("--token", metavar="T", help="Only the holder with this lock token.")
    help_text = "Why, for the history, which also has the operating system's user."
    parser.add_argument("--reason", type=reason, metavar="TEXT", help=help_text)
    parser.add_argument("--dry-run", action="store_true", help="Only show the matching holders.")
    parser.add_argument(
        "--yes", "--noinput", action="store_true", help="Don't ask for confirmation."
    )


def run(command: BaseCommand, manager: LockManager, options: dict[str, Any]) -> None:
    if not any((selected_by(options), options["names"], options["pattern"], options["all"])):
        text = "Give NAMEs, --pattern, --older-than, --host, --process, --task, --stale, --token"
        raise CommandError(f"{text} or --all.", returncode=USAGE)
    failures: list[str] = []
    holds: Iterator[SelectedHold] = matching_holds(manager, options, failures)
    first = next(holds, None)
    if first:
        act(command, manager, options, chain([first], holds), failures)
    elif options["token"] and not failures:  # unlike the other filters, it is of one holder
        raise CommandError("No matching holder has this token.")
    elif not failures:
        command.stdout.write("No active lock matches.")
    if failures:
        raise CommandError("\n".join(failures))


def act(
    command: BaseCommand,
    manager: LockManager,
    options: dict[str, Any],
    holds: Iterable[SelectedHold],
    failures: list[str],
) -> None:
    """Show the holds, or release them, and add a line to `failures` for each that is not."""
    if options["dry_run"]:
        for hold in holds:
            command.stdout.write(f"Would release {hold.text}")
        return
    if not options["yes"]:
        holds = confirmed(command, manager, holds)
    force = partial(manager.force_release, by=system_user(), reason=options["reason"])
    failures += release(force, holds, partial(report, command))


def selected_by(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that select holders, and their values."""
    return {name: options[name] for name in FILTERS if options[name] is not None}


def matching_holds(
    manager: LockManager, options: dict[str, Any], failures: list[str]
) -> Iterator[SelectedHold]:
    """Yield the holds that match, and add a line to `failures` for each NAME that has none."""
    names, selected = options["names"], selected_by(options)
    missing = dict.fromkeys(names)
    named = manager.get_many(names) if names else {}
    for info in named.values() if names else manager.active(options["pattern"]):
        for holding in info.holders:
            if all(FILTERS[each](value, holding) for each, value in selected.items()):
                missing.pop(info.name, None)
                yield SelectedHold.of(info, holding)
        if info.waiters and [*selected] == ["token"]:
            for waiter in manager.queue(info.name, MAX_SEARCHED):
                if waiter.stored_token == options["token"]:
                    missing.pop(info.name, None)
                    yield SelectedHold.of_stored(info, waiter)
    for each in missing:
        reason = "has no holder that matches" if each in named else "is not held"
        failures.append(f"{printable(each)} {reason}")


def tasks_of(holding: Holding) -> Iterator[str]:
    """Return the name and the id of the task of a holder, if it has one."""
    return filter(None, (holding.holder.task_name, holding.holder.task_id))


def confirmed(
    command: BaseCommand, manager: LockManager, matching: Iterable[SelectedHold]
) -> Sequence[SelectedHold]:
    """Return the holds if the user confirms their release. End the command otherwise."""
    if not (sys.stdin and sys.stdin.isatty()):
        raise CommandError("Not released: no terminal for confirmation. Use --yes.")
    holds = [*islice(matching, MAX_CONFIRMED + 1)]
    if len(holds) > MAX_CONFIRMED:
        text = (
            f"Not released: more than {MAX_CONFIRMED:,} holders match. Use --yes to release all."
        )
        raise CommandError(text)
    command.stdout.write(explanation(holds))
    for text in queue_texts(manager, filter(None, (hold.freed for hold in holds))):
        command.stdout.write(text)
    answer = ""
    with suppress(EOFError, KeyboardInterrupt):
        count = len({hold.name for hold in holds})
        answer = input(f"Release {count} lock{pluralize(count)}? [y/N] ")
    if answer.strip().lower() not in ("y", "yes"):
        command.stderr.write("Nothing was released.", style_func=str)
        sys.exit(NOT_DONE)
    return holds


def explanation(holds: Sequence[SelectedHold]) -> str:
    """Return a line for each hold, and for each of their states what a release does."""
    states = dict.fromkeys(hold.state for hold in holds)
    lines = [f"To be released: {hold.text}" for hold in holds]
    return "\n".join([*lines, *(f"{state.label}: {state.release}" for state in states)])


def system_user() -> str | None:
    """Return the name of the operating system's user, if it has one."""
    try:
        return getpass.getuser()
    except (KeyError, ImportError, OSError):  # a container may run with an id of no user
        return None


def release(
    force: Callable[[str, str], int],
    holds: Iterable[SelectedHold],
    report: Callable[[SelectedHold], object],
) -> list[str]:
    """Release by token, so that a newer holder keeps its lock. Call `report` after each release.

    Returns:
        A line for each failure.
    """
    failures: list[str] = []
    unconfirmed = ""
    try:
        for hold in holds:
            unconfirmed = f"It is not known whether {printable(hold.name)} was released. "
            if force(hold.name, hold.stored_token):
                report(hold)
            else:
                failures.append(f"{printable(hold.name)} was not released: the holder has changed")
            unconfirmed = ""
    except RedisError as error:
        text = f"The other holders were not released: {error_text(error)}"
        failures.append(f"{unconfirmed}{text}")
    return failures


def report(command: BaseCommand, hold: SelectedHold) -> None:
    with checked_output(command):
        command.stdout.write(f"Released {hold.text}")
