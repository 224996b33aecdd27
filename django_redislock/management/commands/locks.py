"""`manage.py locks`: lock operations in the terminal and for scripts."""

import os
import sys
from argparse import SUPPRESS
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser, no_translations
from redis.exceptions import RedisError

from ...health import unavailable_text
from ...manager import locks
from ...text import error_text, printable
from ..output import checked_output
from ..subcommands import SUBCOMMANDS


class Command(BaseCommand):
    help = (
        "List, inspect and release locks."
        " Exit status: 0 success; 1 the lock is not held, or was not released; 2 wrong usage."
    )
    # A failing check of another app must not prevent a look at the locks.
    requires_system_checks = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Python has no stream if the shell closed it (>&-).
        sys.stdout, sys.stderr = sys.stdout or discarded(), sys.stderr or discarded()
        super().__init__(*args, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        escape_errors(parser)
        subparsers = parser.add_subparsers(dest="subcommand", required=True, metavar="SUBCOMMAND")
        for name, module in SUBCOMMANDS.items():
            subparser = subparsers.add_parser(name, help=module.HELP, description=module.HELP)
            escape_errors(subparser)
            module.add_arguments(subparser)
            add_common_arguments(subparser)

    def run_from_argv(self, argv: list[str]) -> None:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        super().run_from_argv(argv)

    @no_translations
    def handle(self, *args: Any, **options: Any) -> None:
        manager = locks.using(options["using"])
        try:
            with checked_output(self):
                SUBCOMMANDS[options["subcommand"]].run(self, manager, options)
        except RedisError as error:
            raise CommandError(error_text(unavailable_text(manager.alias, error))) from None
        except ImproperlyConfigured as error:
            raise CommandError(error_text(error)) from None


def discarded() -> TextIO:
    return Path(os.devnull).open("w")


def escape_errors(parser: CommandParser) -> None:
    """Make the errors of a parser printable, because they quote arguments."""
    error = parser.error
    parser.error = lambda message: error(printable(message))  # type: ignore[method-assign]


def add_common_arguments(parser: CommandParser) -> None:
    help_text = "The alias in CACHES; default: REDISLOCK_CACHE."
    parser.add_argument("--using", choices=tuple(settings.CACHES), metavar="A", help=help_text)
    # Django's own options are known before the subcommand; people write them after it.
    hidden: dict[str, Any] = {"default": SUPPRESS, "help": SUPPRESS}
    parser.add_argument("--verbosity", "-v", type=int, choices=range(4), **hidden)
    for option in ("--settings", "--pythonpath"):
        parser.add_argument(option, **hidden)
    for flag in ("--traceback", "--no-color", "--force-color"):
        parser.add_argument(flag, action="store_true", **hidden)
