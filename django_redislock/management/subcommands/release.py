"""`locks release`: force-release locks, after a confirmation."""

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.core.management.base import BaseCommand, CommandError, CommandParser
from redis.exceptions import RedisError

from ...manager import LockManager
from ...snapshots import Holding
from ...text import age, any_of, error_text, printable, short_duration
from ..arguments import NOT_DONE, USAGE, duration, host, name, pattern
from ..formatting import hold_text, similar_names_text
from ..output import stop, tolerate_closed_pipe, write

HELP = "Force-release locks. This does not stop their holders."

WARNING = "A release does not stop a holder, which works alongside the next one until it notices."


class Hold(NamedTuple):
    name: str
    holding: Holding


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("names", nargs="*", type=name, metavar="NAME", help="A lock's name.")
    parser.add_argument("--pattern", type=pattern, metavar="P", help="All names that match P.")
    parser.add_argument("--all", action="store_true", help="All locks.")
    parser.add_argument(
        "--older-than",
        type=duration,
        metavar="D",
        help="Only holders that have held for longer than D: 90s, 5m, 2h, 1d, or plain seconds.",
    )
    parser.add_argument("--host", type=host, metavar="H", help="Only holders on this host.")
    parser.add_argument(
        "--task",
        type=pattern,
        metavar="T",
        help="Only holders that run this Celery task: its name, a pattern of names, or its id.",
    )
    parser.add_argument("--stale", action="store_true", help="Only stale holders.")
    parser.add_argument("--token", metavar="T", help="Only the holder with this lock token.")
    parser.add_argument("--dry-run", action="store_true", help="Only show the matching holders.")
    parser.add_argument(
        "--yes", "--noinput", action="store_true", help="Don't ask for confirmation."
    )


def run(command: BaseCommand, manager: LockManager, options: dict[str, Any]) -> None:
    check_usage(options)
    holds, failures = select(manager, options)
    if not holds and not failures:
        command.stdout.write("No active lock matches.")
    if options["dry_run"]:
        report(command, "Would release", holds)
    elif holds:
        if not options["yes"]:
            confirm(command, holds)
        released, changed = release(manager, holds)
        failures += changed
        with tolerate_closed_pipe(command):
            report(command, "Released", released)
    if failures:
        raise CommandError("\n".join(failures), returncode=NOT_DONE)


def check_usage(options: dict[str, Any]) -> None:
    names, matching, everything = options["names"], options["pattern"], options["all"]
    filters = options["older_than"] is not None, options["host"], options["task"], options["stale"]
    if sum(map(bool, (names, matching, everything))) > 1:
        raise CommandError("Give either NAMEs, --pattern or --all.", returncode=USAGE)
    if not any((names, matching, everything, *filters)):
        usage = "Give NAMEs, --pattern, --older-than, --host, --task, --stale or --all."
        raise CommandError(usage, returncode=USAGE)
    if options["token"] is not None and len(names) != 1:
        raise CommandError("--token requires exactly one NAME.", returncode=USAGE)


def select(manager: LockManager, options: dict[str, Any]) -> tuple[list[Hold], list[str]]:
    """Return the holds that match, and a line for each NAME that has none."""
    names = dict.fromkeys(options["names"])
    infos = map(manager.get, names) if names else manager.active(options["pattern"])
    holds: list[Hold] = []
    reasons: dict[str, str] = {}
    for info in filter(None, infos):
        for holding in info.holders:
            if reason := mismatch(holding, options):
                reasons.setdefault(info.name, reason)
            else:
                holds.append(Hold(info.name, holding))
    failures = []
    for each in names.keys() - {hold.name for hold in holds}:
        reason = reasons.get(each) or f"is not held{similar_names_text(manager, each)}"
        failures.append(f"{printable(each)} {reason}")
    return holds, sorted(failures)


def mismatch(holding: Holding, options: dict[str, Any]) -> str | None:
    """Return why a hold does not match, or None if it matches."""
    holder, task, older_than = holding.holder, options["task"], options["older_than"]
    if options["token"] is not None and holding.token != options["token"]:
        return "is not held with that token"
    if options["host"] and holder.host != options["host"]:
        return "is held on another host"
    tasks = holder.task_name or "", holder.task_id or ""
    if task and not any(map(any_of((task,)).match, tasks)):
        return "is not held by that task"
    if options["stale"] and not holding.is_stale:
        return "is not stale"
    if older_than is not None and age(holding) <= older_than:
        return f"has been held for only {short_duration(age(holding))}"
    return None


def confirm(command: BaseCommand, holds: Sequence[Hold]) -> None:
    if not sys.stdin.isatty():
        raise CommandError("Not released: no terminal for confirmation. Use --yes.")
    *lines, prompt = question(holds)
    for line in lines:
        write(command, line)
    try:
        is_confirmed = input(f"{prompt} ").strip().lower() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        is_confirmed = False
    if not is_confirmed:
        stop(command, "Nothing was released.", NOT_DONE)


def question(holds: Sequence[Hold]) -> list[str]:
    """Return what will be released, a warning, and the question on the last line."""
    lines = [f"To be released: {hold_text(*hold)}" for hold in holds]
    if any(holding.timeout for _, holding in holds):
        lines.append(WARNING)
    locks, stale = len({hold.name for hold in holds}), sum(each.holding.is_stale for each in holds)
    text = "1 lock" if locks == 1 else f"{locks} locks"
    if len(holds) > locks:
        text += f" with {len(holds)} holders"
    if stale:
        text += f" ({stale} stale)"
    return [*lines, f"Release {text}? [y/N]"]


def release(manager: LockManager, holds: Sequence[Hold]) -> tuple[list[Hold], list[str]]:
    """Release by token, so that a newer holder keeps its lock.

    Returns:
        The holds that were released, and a line for each failure.
    """
    released, failures = [], []
    for number, hold in enumerate(holds):
        failure = f"{printable(hold.name)} was not released"
        try:
            if manager.force_release(hold.name, hold.holding.token):
                released.append(hold)
            else:
                failures.append(f"{failure}: the holder has changed")
        except RedisError as error:
            rest = len(holds) - number - 1
            failures.append(f"{failure}, nor {rest} after it: {error_text(error)}")
            break
    return released, failures


def report(command: BaseCommand, what: str, holds: Sequence[Hold]) -> None:
    for hold in holds:
        write(command, f"{what} {hold_text(*hold)}")
