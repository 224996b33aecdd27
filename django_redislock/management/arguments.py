"""Types of arguments, and exit statuses."""

import re
from argparse import ArgumentTypeError

from django.conf import settings
from django.core.management.base import CommandParser

from django_redislock.names import check_name
from django_redislock.redaction import without_secrets
from django_redislock.text import parse_duration, printable
from django_redislock.validators import MAX_COUNT

NOT_DONE, USAGE = 1, 2
"""Exit statuses: the lock is not held, or the operation failed; wrong usage."""

MIN_INTERVAL_SECONDS, MAX_INTERVAL_SECONDS = 0.1, 3600.0


def add_pattern(parser: CommandParser) -> None:
    parser.add_argument(
        "pattern",
        nargs="?",
        type=pattern,
        metavar="PATTERN",
        help="Only names that match: * is any text, ? any one character.",
    )


def name(text: str, argument: str = "NAME") -> str:
    try:
        return check_name(text, argument)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def pattern(text: str) -> str:
    return name(text, "PATTERN")


def limit(text: str) -> int:
    if not re.fullmatch("0*[1-9][0-9]{0,6}", text) or int(text) > MAX_COUNT:
        raise ArgumentTypeError(
            f"must be a whole number from 1 to {MAX_COUNT:,}, got {printable(repr(text))}"
        )
    return int(text)


def duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def interval(text: str) -> float:
    seconds = duration(text)
    if not MIN_INTERVAL_SECONDS <= seconds <= MAX_INTERVAL_SECONDS:
        raise ArgumentTypeError(f"must be from 0.1s to 1h, got {printable(repr(text))}")
    return seconds


def alias(text: str) -> str:
    if text not in settings.CACHES:
        known = ", ".join(sorted(settings.CACHES))
        given = without_secrets(repr(text))
        raise ArgumentTypeError(f"{given} is not a cache alias (CACHES has: {known})")
    return text
