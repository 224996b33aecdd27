"""Types of arguments, and exit statuses."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from functools import partial
from typing import Any

from django.core.management.base import CommandParser

from .. import validators
from ..names import check_name
from ..text import parse_duration

NOT_DONE, USAGE = 1, 2
"""Exit statuses: the lock is not held, or the operation failed; wrong usage."""

MAX_ROWS = 5_000
"""The largest ``--limit``, so that no command takes much memory."""


def add_pattern(parser: CommandParser) -> None:
    help_text = "Only names that match: * is any text, ? any one character."
    parser.add_argument("pattern", nargs="?", type=pattern, metavar="PATTERN", help=help_text)


def add_process(parser: CommandParser) -> None:
    help_text = (
        "Only holders in this process, as HOST:PID, but not the tasks that it has only sent."
    )
    parser.add_argument("--process", type=process, metavar="HOST:PID", help=help_text)


def add_format(parser: CommandParser, *formats: str) -> None:
    """Add ``--format``. The first of the formats is the default."""
    help_text = "%(default)s, for people (the default); the others, for programs, have all fields."
    parser.add_argument("--format", choices=formats, default=formats[0], help=help_text)


def argument(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a type for argparse that prints the text of a `ValueError`."""

    def converted(text: str) -> Any:
        try:
            return convert(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from error

    return converted


def between(lowest: float, highest: float, parse: Callable[[str], float], text: str) -> float:
    number = parse(text)
    if not lowest <= number <= highest:
        raise ValueError(f"must be from {lowest:,} to {highest:,}, got {text}")
    return number


def parse_process(text: str) -> str:
    host, _, pid = text.rpartition(":")
    if not (host and pid.isdecimal()):
        raise ValueError(f"invalid process {text!r}. Use HOST:PID, as in the column HOLDER.")
    return text


name = argument(partial(check_name, argument="NAME"))
pattern = argument(partial(check_name, argument="PATTERN"))
duration = argument(parse_duration)
lease = argument(lambda text: validators.lease("the lease", parse_duration(text)))
process = argument(parse_process)
limit = argument(partial(between, 1, MAX_ROWS, int))
reason = argument(partial(validators.reason, "TEXT"))
exit_status = argument(partial(between, 0, 255, int))
