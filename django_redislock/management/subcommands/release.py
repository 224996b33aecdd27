"""`locks release`: take locks from their holders, knowingly."""

import sys
from collections.abc import Iterable
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_redislock.management.arguments import NOT_DONE, USAGE, duration, name, pattern
from django_redislock.management.presenting import release_text
from django_redislock.management.releasing import Choice, Held, choose, release
from django_redislock.management.terminal import let_nobody_read, stop, whoever_reads, write
from django_redislock.manager import LockManager
from django_redislock.text import printable

HELP = "Take locks from their holders."

GOES_ON = "(After a release a holder goes on until it notices, beside the next one.)"


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("names", nargs="*", type=name, metavar="NAME", help="A lock's name.")
    parser.add_argument("--pattern", type=pattern, metavar="P", help="All names that match P.")
    parser.add_argument("--all", action="store_true", help="All locks.")
    parser.add_argument(
        "--older-than",
        type=duration,
        metavar="D",
        help="Only what has been held for longer than D: 90s, 5m, 2h, 1d, or plain seconds.",
    )
    parser.add_argument(
        "--token", metavar="T", help="Only if the holder with this token still holds it."
    )
    parser.add_argument("--dry-run", action="store_true", help="Only say what would be released.")
    parser.add_argument("--yes", action="store_true", help="Don't ask.")


def run(command: BaseCommand, manager: LockManager, options: dict[str, Any]) -> None:
    outcome = choose(manager, choice_of(options))
    if not outcome.chosen and not outcome.refused:
        command.stdout.write("No active lock matches.")
    if options["dry_run"]:
        tell(command, "Would release", outcome.chosen)
    elif outcome.chosen:
        confirm(command, outcome.chosen, options["yes"])
        outcome.refused += release_all(command, manager, outcome.chosen)
    if outcome.refused:
        raise CommandError("\n".join(outcome.refused), returncode=NOT_DONE)


def choice_of(options: dict[str, Any]) -> Choice:
    """Return which holders are meant; `CommandError` if the options contradict each other."""
    names, matching, everything = options["names"], options["pattern"], options["all"]
    older_than = options["older_than"]
    if sum(map(bool, (names, matching, everything))) > 1:
        raise CommandError("Give either NAMEs, --pattern or --all.", returncode=USAGE)
    if not (names or matching or everything or older_than is not None):
        raise CommandError("Give NAMEs, --pattern, --older-than or --all.", returncode=USAGE)
    if options["token"] is not None and len(names) != 1:
        raise CommandError("--token requires exactly one NAME.", returncode=USAGE)
    return Choice(
        names=tuple(names),
        pattern=matching,
        older_than=-1 if older_than is None else older_than,
        token=options["token"],
    )


def confirm(command: BaseCommand, chosen: list[Held], yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError("Not released: no terminal for confirmation. Use --yes.")
    if not agrees(command, chosen):
        stop(command, "Nothing was released.", NOT_DONE)


def agrees(command: BaseCommand, chosen: list[Held]) -> bool:
    try:
        tell(command, "To be released:", chosen)
        if any(holding.timeout for _, holding in chosen):
            write(command, GOES_ON)
        return input(f"Release {len(chosen)}? [y/N] ").strip().lower() in ("y", "yes")
    except BrokenPipeError:
        let_nobody_read(command)
        return False
    except (EOFError, KeyboardInterrupt):
        return False


def release_all(command: BaseCommand, manager: LockManager, chosen: Iterable[Held]) -> list[str]:
    """Return what went otherwise; to be told of what was released is no condition for more."""
    amiss = []
    for held in chosen:
        if release(manager, held):
            amiss += tell_released(command, held)
        else:
            amiss.append(f"{printable(held.name)} has changed hands or come free")
    return amiss


def tell_released(command: BaseCommand, held: Held) -> list[str]:
    try:
        with whoever_reads(command):
            tell(command, "Released", [held])
    except OSError as error:
        let_nobody_read(command)  # so that it is complained of once
        return [f"Could not write output: {error.strerror}. The locks were released."]
    return []


def tell(command: BaseCommand, what: str, chosen: Iterable[Held]) -> None:
    for held in chosen:
        write(command, f"{what} {release_text(*held)}")
