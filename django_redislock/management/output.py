"""Text output: colours, and tables that fit a terminal."""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, zip_longest
from shutil import get_terminal_size
from textwrap import fill
from unicodedata import combining, east_asian_width

from django.core.management.base import BaseCommand, CommandError

from ..text import error_text

GAP = "  "
"""The space between two columns."""

MAX_CELL_COLUMNS = 32
"""The widest cell of a table on a narrow terminal. A longer name would hide the other columns."""


@contextmanager
def checked_output(command: BaseCommand) -> Iterator[None]:
    """Write the output, or discard it if its reader has ended, as in ``locks list | head``.

    Raises:
        CommandError: It cannot be written, for example because the disk is full.
    """
    try:
        yield
        command.stdout.flush()
    except OSError as error:
        # When the process ends, Python writes what is left of the output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), command.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise CommandError(error_text(error)) from None


def write_paragraph(command: BaseCommand, text: str) -> None:
    """Write a long text. A terminal gets lines that end between words."""
    if command.stdout.isatty():
        text = fill(text, get_terminal_size().columns)
    command.stdout.write(text)


def write_table(command: BaseCommand, rows: Sequence[Sequence[str]], *styles: str) -> None:
    """Write a table. The first row is the header; the others have these styles of Django.

    A terminal gets one line for each row. If it is too narrow, long cells and long lines are cut.
    """
    lines = table_lines(rows)
    room = get_terminal_size().columns if command.stdout.isatty() else math.inf
    if max(map(width, lines)) > room:
        lines = [padded(line, room).rstrip() for line in table_lines(rows, MAX_CELL_COLUMNS)]
    for line, style in zip_longest(lines, ["MIGRATE_LABEL", *styles], fillvalue=""):
        command.stdout.write(line, getattr(command.style, style, None))


def table_lines(rows: Sequence[Sequence[str]], most: float = math.inf) -> list[str]:
    """Return the lines of a table with aligned columns. Cells that are wider than `most` are
    cut."""
    widths = [min(max(map(width, cells)), most) for cells in zip(*rows, strict=True)]
    return [GAP.join(map(padded, row, widths)).rstrip() for row in rows]


def padded(text: str, columns: float) -> str:
    """Return `text` with spaces at its end, or cut."""
    if width(text) > columns:
        ends = accumulate(map(width, text))
        text = "".join(c for c, end in zip(text, ends, strict=True) if end < columns) + "…"
    return text + " " * int(columns - width(text))


def width(text: str) -> int:
    """Return how many columns of a terminal `text` takes."""
    if text.isascii():
        return len(text)
    return sum(1 + (east_asian_width(c) in "WF") for c in text if not combining(c))
