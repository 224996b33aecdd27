"""The parser of ``locks``, for tools such as shtab that complete words in a shell."""

from django.core.management.base import CommandParser

from .commands.locks import Command


def parser() -> CommandParser:
    """Return the parser of ``locks``, with all its subcommands and their options."""
    return Command().create_parser("", "locks")
