"""Text output: colours, and tables that fit a terminal."""

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

MIN_WIDTHS = {"NAME": 24, "HOLDER": 8, "WAITER": 8, "TASK": 8, "METADATA": 8, "FORCED BY": 8}
"""The columns whose cells a narrow terminal cuts, and how wide they stay if possible."""

EXPENDABLE_COLUMNS = ("FENCE", "KIND", "TASK")
"""The columns that a narrow terminal leaves out if such cuts are not enough, in this order."""


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
    """Write a table. The first row is the header; the others have these styles of Django."""
    room = get_terminal_size().columns if command.stdout.isatty() else None
    lines = table_lines(rows, room)
    for line, style in zip_longest(lines, ["MIGRATE_LABEL", *styles], fillvalue=""):
        command.stdout.write(line, getattr(command.style, style, None))


def table_lines(rows: Sequence[Sequence[str]], room: int | None = None) -> list[str]:
    """Return the lines of a table with aligned columns. The first row is the header.

    With `room`, the columns of a terminal, some cells are cut and some columns left out.
    """
    columns = {header: [header, *cells] for header, *cells in zip(*rows, strict=True)}
    widths = {header: max(map(width, cells)) for header, cells in columns.items()}
    if room:
        reduce_widths(widths, room)
    shown = [[padded(cell, widths[header]) for cell in columns[header]] for header in widths]
    return [GAP.join(cells).rstrip() for cells in zip(*shown, strict=True)]


def reduce_widths(widths: dict[str, int], room: int) -> None:
    """Reduce the widths of columns. Leave out columns of a table that would still be too wide."""

    def excess() -> int:
        return sum(widths.values()) + len(GAP) * (len(widths) - 1) - room

    for name in EXPENDABLE_COLUMNS:
        spare = [max(widths.get(each, 0) - least, 0) for each, least in MIN_WIDTHS.items()]
        if excess() > sum(spare):
            widths.pop(name, None)
    cut = [name for name in MIN_WIDTHS if name in widths]
    for _ in range(excess()):
        widths[max(cut, key=lambda name: widths[name] / MIN_WIDTHS[name])] -= 1


def padded(text: str, columns: int) -> str:
    """Return `text` with spaces at its end, or cut."""
    if width(text) > columns:
        ends = accumulate(map(width, text))
        text = "".join(c for c, end in zip(text, ends, strict=True) if end < columns) + "…"
    return text + " " * (columns - width(text))


def width(text: str) -> int:
    """Return how many columns of a terminal `text` takes."""
    if text.isascii():
        return len(text)
    return sum(1 + (east_asian_width(c) in "WF") for c in text if not combining(c))
