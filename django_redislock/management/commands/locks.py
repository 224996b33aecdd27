"""`manage.py locks`: the active locks in the terminal and for scripts."""

from argparse import SUPPRESS
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from redis.exceptions import RedisError

from django_redislock.management.arguments import alias
from django_redislock.management.subcommands import SUBCOMMANDS
from django_redislock.management.terminal import choose_style, open_closed_streams, whoever_reads
from django_redislock.manager import locks
from django_redislock.text import error_text, printable


class Command(BaseCommand):
    help = (
        "See, watch and release active locks, and what became of them."
        " Exit status: 0 done; 1 what was named is not held, or refused; 2 usage."
    )
    # Another app's failing check must not stand in the way of a look at the locks.
    requires_system_checks = ()

    is_command_line = False
    """Whether a shell started it, and not `call_command`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        open_closed_streams()
        super().__init__(*args, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        complain_plainly(parser)
        subparsers = parser.add_subparsers(dest="subcommand", required=True, metavar="SUBCOMMAND")
        for name, subcommand in SUBCOMMANDS.items():
            subparser = subparsers.add_parser(
                name, help=subcommand.HELP, description=subcommand.HELP
            )
            complain_plainly(subparser)
            subcommand.add_arguments(subparser)
            add_common_arguments(subparser)

    def run_from_argv(self, argv: list[str]) -> None:
        self.is_command_line = True
        super().run_from_argv(argv)

    def handle(self, *args: Any, **options: Any) -> None:
        subcommand = SUBCOMMANDS[options["subcommand"]]
        choose_style(self, options)
        manager = locks.using(options["using"])
        try:
            with whoever_reads(self):
                subcommand.run(self, manager, options)
        except RedisError as error:
            told = f"The locks on {manager.alias!r} can't be reached: {error}"
            raise CommandError(error_text(told)) from None
        except ImproperlyConfigured as error:
            raise CommandError(error_text(error)) from None


def complain_plainly(parser: CommandParser) -> None:
    """Have what it says of arguments be printable, as a name that begins with a dash is taken for
    one of them."""
    complain = parser.error
    parser.error = lambda message: complain(printable(message))  # type: ignore[method-assign]


def add_common_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "--using", type=alias, metavar="A", help="The alias in CACHES; default: REDISLOCK_CACHE."
    )
    # Django's own options are known before the subcommand; people write them after it.
    parser.add_argument(
        "--verbosity", "-v", type=int, choices=range(4), default=SUPPRESS, help=SUPPRESS
    )
    for options in (("--settings",), ("--pythonpath",)):
        parser.add_argument(*options, default=SUPPRESS, help=SUPPRESS)
    for flag in ("--traceback", "--no-color", "--force-color"):
        parser.add_argument(flag, action="store_true", default=SUPPRESS, help=SUPPRESS)
