"""`locks run`: run a command while a lock is held."""

import threading
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError, CommandParser
from redis.exceptions import RedisError

from django_redislock import validators
from django_redislock.exceptions import LockError
from django_redislock.management import command_runner
from django_redislock.management.arguments import NOT_DONE, USAGE, duration, name
from django_redislock.management.output import plain, stop
from django_redislock.manager import LockManager
from django_redislock.text import error_text, printable

HELP = "Run a command while a lock is held, and stop it if the lock is lost."

USAGE_LINE = (
    "%(prog)s NAME [--timeout S] [--wait S | --skip] [--grace S] [--conflict-exit-code N]"
    " [--using A] -- COMMAND..."
)


def add_arguments(parser: CommandParser) -> None:
    parser.usage = USAGE_LINE
    parser.epilog = (
        "Exit status: of the command, 128 + n for signal n; 126 it cannot be executed, 127 not"
        f" found; {command_runner.LOST} the lock was lost; 1 the lock was not acquired, or Redis"
        " is unreachable; 2 wrong usage."
    )
    parser.add_argument("name", type=name, metavar="NAME", help="The lock's name.")
    parser.add_argument(
        "--timeout",
        type=lease,
        metavar="S",
        help="The lease, renewed while the command runs; default: REDISLOCK_TIMEOUT.",
    )
    waiting = parser.add_mutually_exclusive_group()
    waiting.add_argument(
        "--wait", type=duration, metavar="S", help="Wait at most this long; default: no limit."
    )
    waiting.add_argument("--skip", action="store_true", help="Don't wait.")
    parser.add_argument(
        "--grace",
        type=duration,
        default=command_runner.GRACE_SECONDS,
        metavar="S",
        help="From SIGTERM to SIGKILL, if the lock is lost; default: 10.",
    )
    parser.add_argument(
        "--conflict-exit-code",
        type=exit_code,
        default=NOT_DONE,
        metavar="N",
        help="Exit status if the lock was not acquired; default: 1. With 0 nothing is printed"
        " about it, except with -v 2.",
    )
    parser.set_defaults(argv=())
    split_at_dashes(parser)


def run(command: BaseCommand, manager: LockManager, options: dict[str, Any]) -> None:
    if threading.current_thread() is not threading.main_thread():
        raise CommandError("locks run needs the main thread, because it forwards signals.")

    status_if_skipped = options["conflict_exit_code"]
    # A skipped run that counts as a success is silent, so that cron sends no mail about it.
    is_quiet = status_if_skipped == 0 and options["verbosity"] < 2

    def say(text: str, *, is_routine: bool = False) -> None:
        if is_routine and is_quiet:
            return
        with suppress(OSError, ValueError):  # stderr is closed
            command.stderr.write(text, style_func=plain if is_routine else None)

    def fail(reason: object, status: int = NOT_DONE) -> NoReturn:
        stop(command, f"Not run: {error_text(reason)}", status, command.style.ERROR)

    argv = tuple(options["argv"])
    if not argv or not argv[0]:
        fail("give the command after --, as in: NAME -- ls -l", USAGE)
    if any("\0" in argument for argument in argv):
        fail("the command contains a NUL character", USAGE)
    job = command_runner.Job(
        name=options["name"],
        argv=argv,
        timeout=options["timeout"],
        wait=0 if options["skip"] else options["wait"],
        grace=options["grace"],
    )
    try:
        status = command_runner.run(manager, job, say)
    except command_runner.NotAcquired as conflict:
        if is_quiet:
            return
        fail(conflict, status_if_skipped)
    except LockError as error:
        fail(error)
    except RedisError as error:
        fail(f"the locks on {manager.alias!r} can't be reached: {error}")
    if status:
        raise SystemExit(status)


def lease(text: str) -> float:
    try:
        return validators.lease("the lease", duration(text))
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def exit_code(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 255:
        raise ArgumentTypeError(f"must be from 0 to 255, got {printable(repr(text))}")
    return int(text)


def split_at_dashes(parser: CommandParser) -> None:
    """Let the parser parse the arguments before the first ``--``. The rest is the command.

    The versions of argparse treat "--" differently, and the command can contain one, too.
    """
    parse = parser.parse_known_args

    def parse_known_args(
        args: Sequence[str], namespace: Namespace | None = None
    ) -> tuple[Namespace, list[str]]:
        given = list(args)
        end = given.index("--") if "--" in given else len(given)
        parsed, unknown = parse(given[:end], namespace)
        if unknown:
            parser.error(f"not known: {' '.join(unknown)} (the command goes after --)")
        parsed.argv = tuple(given[end + 1 :])
        return parsed, unknown

    parser.parse_known_args = parse_known_args  # type: ignore[method-assign,assignment]
