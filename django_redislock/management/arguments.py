"""Types of arguments, and exit statuses."""

import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from django.core.management.base import CommandParser

from django_redislock import validators

from ..names import check_name
from ..text import parse_duration, printable

NOT_DONE, USAGE = 1, 2
"""Exit statuses: the lock is not held, or the operation failed; wrong usage."""

MIN_INTERVAL_SECONDS, MAX_INTERVAL_SECONDS = 0.1, 3600.0

T = TypeVar("T")


def add_pattern(parser: CommandParser) -> None:
    parser.add_argument(
        "pattern",
        nargs="?",
        type=pattern,
        metavar="PATTERN",
        help="Only names that match: * is any text, ? any one character.",
    )


def add_format(parser: CommandParser, *formats: str) -> None:
    """Add ``--format``. The first of the formats is the default."""
    parser.add_argument(
        "--format",
        choices=formats,
        default=formats[0],
        help=f"{formats[0]}, for people (the default); the others, for programs, have all fields.",
    )


def argument(convert: Callable[[str], T]) -> Callable[[str], T]:
    """Return a type for argparse that prints the text of a `ValueError`."""

    def converted(text: str) -> T:
        try:
            return convert(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from error

    return converted


def _interval(text: str) -> float:
    seconds = parse_duration(text)
    if not MIN_INTERVAL_SECONDS <= seconds <= MAX_INTERVAL_SECONDS:
        raise ValueError(f"must be from 0.1s to 1h, got {printable(repr(text))}")
    return seconds


def _whole_number(lowest: int, highest: int, text: str) -> int:
    if not re.fullmatch("0*[0-9]{1,7}", text) or not lowest <= int(text) <= highest:
        shown = printable(repr(text))
        raise ValueError(f"must be a whole number from {lowest} to {highest:,}, got {shown}")
    return int(text)


name = argument(partial(check_name, argument="NAME"))
pattern = argument(partial(check_name, argument="PATTERN"))
duration = argument(parse_duration)
lease = argument(lambda text: validators.lease("the lease", parse_duration(text)))
interval = argument(_interval)
limit = argument(partial(_whole_number, 1, validators.MAX_COUNT))
exit_status = argument(partial(_whole_number, 0, 255))


def host(text: str) -> str:
    """Return the name of a host. An empty text, as of an unset variable, is an error."""
    if not text:
        raise ArgumentTypeError("a host must not be empty")
    return text
