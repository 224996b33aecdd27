"""Text output: colours, and tables that fit a terminal."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, chain, islice, tee
from shutil import get_terminal_size
from typing import TypeAlias
from unicodedata import combining, east_asian_width

from django.core.management.base import BaseCommand, CommandError

from ..text import error_text

Paint: TypeAlias = Callable[[str], str]
Row: TypeAlias = tuple[Paint, Sequence[str]]
"""A line of a table: its colour, its cells."""

plain: Paint = str
"""No colour."""

GAP = "  "
"""The space between two columns."""

MIN_WIDTHS = {"NAME": 24, "HOLDER": 8, "WAITER": 8, "TASK": 8, "METADATA": 8}
"""The columns whose cells a narrow terminal cuts, and how wide they stay at first."""

EXPENDABLE_COLUMNS = ("FENCE", "KIND", "TASK")
"""The columns that a narrow terminal leaves out if such cuts are not enough, in this order."""

MEASURED_ROWS = 1000
"""The rows that determine the width of the columns. A table can have very many rows."""


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


def write_table(command: BaseCommand, header: Sequence[str], rows: Iterable[Row]) -> None:
    """Write a table. On a terminal, its lines fit."""
    room = get_terminal_size().columns if command.stdout.isatty() else None
    heading: Row = command.style.MIGRATE_LABEL, header
    paints, cells = tee(chain([heading], rows))
    lines = table_lines((row for _, row in cells), room)
    for (paint, _), line in zip(paints, lines, strict=True):
        command.stdout.write(line, paint)


def table_lines(rows: Iterable[Sequence[str]], room: int | None = None) -> Iterator[str]:
    """Yield the lines of a table with aligned columns.

    Args:
        rows: The cells. The first row is the header.
        room: How many columns of the terminal the lines may take. Longer cells are cut.
    """
    rest = iter(rows)
    first = list(islice(rest, MEASURED_ROWS))
    widths = column_widths(first, room)
    for row in chain(first, rest):
        cells = zip(row, widths, strict=True)
        yield GAP.join(padded(text, wide, room) for text, wide in cells if wide).rstrip()


def column_widths(rows: Sequence[Sequence[str]], room: int | None) -> list[int]:
    """Return the width of each column: 0 if a narrow terminal leaves it out.

    First an empty TASK column is left out, then cells are cut, then other columns are left out.
    """
    columns = {header: [header, *cells] for header, *cells in zip(*rows, strict=True)}
    widths = {name: max(map(width, cells)) for name, cells in columns.items()}
    narrow = {name: min(wide, MIN_WIDTHS.get(name, wide)) for name, wide in widths.items()}

    def excess(wide: dict[str, int]) -> int:
        shown = [each for each in wide.values() if each]
        return sum(shown) + len(GAP) * (len(shown) - 1) - room if room else 0

    if excess(widths) > 0 and set(columns.get("TASK", ())) == {"TASK", "-"}:
        widths["TASK"] = narrow["TASK"] = 0
    for name in EXPENDABLE_COLUMNS:
        if excess(narrow) > 0 and name in widths:
            widths[name] = narrow[name] = 0
    for _ in range(excess(widths)):
        longest = [name for name in widths if widths[name] > narrow[name]]
        widths[max(longest or widths, key=widths.__getitem__)] -= 1
    return list(widths.values())


def padded(text: str, columns: int, room: int | None) -> str:
    """Return `text` with spaces at its end, or cut if room is limited."""
    if room and width(text) > columns:
        ends = accumulate(map(width, text))
        text = "".join(c for c, end in zip(text, ends, strict=True) if end < columns) + "…"
    return text + " " * (columns - width(text))


def width(text: str) -> int:
    """Return how many columns of a terminal `text` takes."""
    if text.isascii():
        return len(text)
    return sum(1 + (east_asian_width(c) in "WF") for c in text if not combining(c))
