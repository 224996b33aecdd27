"""`manage.py locks`: the active locks in the terminal and for scripts."""

import os
import sys
from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Iterable
from itertools import islice
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from redis.exceptions import RedisError

from django_redislock.management.presenting import as_json, as_table, holding_text
from django_redislock.management.releasing import Choice, Held, choose, release
from django_redislock.manager import LockManager, locks
from django_redislock.names import check_name
from django_redislock.text import parse_duration, printable

NOT_DONE, USAGE = 1, 2
"""Exit statuses: what was named is not held, or refused; the call makes no sense."""


class Command(BaseCommand):
    help = (
        "List and release active locks."
        " Exit status: 0 done; 1 what was named is not held, or refused; 2 usage."
    )
    # Another app's failing check must not stand in the way of a look at the locks.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        subcommands = parser.add_subparsers(dest="subcommand", required=True, metavar="SUBCOMMAND")
        for name, run, add_arguments, text in (
            ("list", self.run_list, add_list_arguments, "Show the active locks."),
            ("release", self.run_release, add_release_arguments, "Take locks from their holders."),
        ):
            subparser = subcommands.add_parser(name, help=text, description=text)
            subparser.set_defaults(run=run)
            add_arguments(subparser)
            add_common_arguments(subparser)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            options["run"](locks.using(options["using"]), options)
            self.stdout.flush()
        except BrokenPipeError:  # as in `locks list | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except (RedisError, ImproperlyConfigured) as error:
            raise CommandError(f"The locks can't be reached: {printable(error)}") from error

    def run_list(self, manager: LockManager, options: dict[str, Any]) -> None:
        found = islice(manager.active(options["pattern"]), options["limit"])
        if options["format"] == "json":
            self._write(as_json(found))
        elif infos := list(found):
            self._write(f"{line}\n" for line in as_table(infos))
        else:
            self.stdout.write("No active locks.")

    def run_release(self, manager: LockManager, options: dict[str, Any]) -> None:
        outcome = choose(manager, choice_of(options))
        if not outcome.chosen and not outcome.refused:
            self.stdout.write("No active lock matches.")
        if options["dry_run"]:
            self._tell("Would release", outcome.chosen)
        elif outcome.chosen:
            self._confirm(outcome.chosen, options["yes"])
            outcome.refused += self._release(manager, outcome.chosen)
        if outcome.refused:
            raise CommandError("\n".join(outcome.refused), returncode=NOT_DONE)

    def _release(self, manager: LockManager, chosen: Iterable[Held]) -> list[str]:
        changed = []
        for held in chosen:
            if release(manager, held):
                self._tell("Released", [held])
            else:
                changed.append(f"{printable(held.name)} has changed hands or come free")
        return changed

    def _confirm(self, chosen: list[Held], yes: bool) -> None:
        if yes:
            return
        if not sys.stdin.isatty():
            raise CommandError("Refused: there is no terminal to ask on. Use --yes.")
        self._tell("To be released:", chosen)
        if not agrees(f"Release {len(chosen)}? [y/N] "):
            raise CommandError("Refused: nothing was released.")

    def _tell(self, what: str, chosen: Iterable[Held]) -> None:
        for held in chosen:
            self.stdout.write(f"{what} {holding_text(*held)}")

    def _write(self, parts: Iterable[str]) -> None:
        for part in parts:
            self.stdout.write(part, ending="")


def add_list_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "pattern",
        nargs="?",
        type=pattern,
        metavar="PATTERN",
        help="Only names that match: * is any text, ? any one character.",
    )
    parser.add_argument(
        "--format",
        choices=("table", "json"),
        default="table",
        help="json has all there is to know, the owners' tokens too.",
    )
    parser.add_argument("--limit", type=limit, metavar="N", help="At most N locks.")


def add_release_arguments(parser: CommandParser) -> None:
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


def add_common_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "--using", type=alias, metavar="A", help="The alias in CACHES; default: REDISLOCK_CACHE."
    )
    # Django's own options are known before the subcommand; people write them after it.
    for options in (("--settings",), ("--pythonpath",), ("--verbosity", "-v")):
        parser.add_argument(*options, default=SUPPRESS, help=SUPPRESS)
    for flag in ("--traceback", "--no-color", "--force-color"):
        parser.add_argument(flag, action="store_true", default=SUPPRESS, help=SUPPRESS)


def choice_of(options: dict[str, Any]) -> Choice:
    """Return which holders are meant; `CommandError` if the options contradict each other."""
    names, matching, everything = options["names"], options["pattern"], options["all"]
    older_than = options["older_than"]
    if sum(map(bool, (names, matching, everything))) > 1:
        raise CommandError("Give either NAMEs, --pattern or --all.", returncode=USAGE)
    if not (names or matching or everything or older_than is not None):
        raise CommandError("Give NAMEs, --pattern, --older-than or --all.", returncode=USAGE)
    if options["token"] is not None and len(names) != 1:
        raise CommandError("--token goes with exactly one NAME.", returncode=USAGE)
    return Choice(
        names=tuple(names),
        pattern=matching,
        older_than=-1 if older_than is None else older_than,
        token=options["token"],
    )


def agrees(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        return False


def name(text: str) -> str:
    return _checked(text, "NAME")


def pattern(text: str) -> str:
    return _checked(text, "PATTERN")


def limit(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError(f"must be a whole number from 1, got {printable(repr(text))}")
    return int(text)


def duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def alias(text: str) -> str:
    if text not in settings.CACHES:
        known = ", ".join(sorted(settings.CACHES))
        raise ArgumentTypeError(f"{text!r} is no alias in CACHES (there are: {known})")
    return text


def _checked(text: str, argument: str) -> str:
    try:
        return check_name(text, argument)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error
