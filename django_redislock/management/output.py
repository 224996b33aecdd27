"""Text output: colours, tables that fit a terminal, and messages about the end of a command."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from shutil import get_terminal_size
from typing import NoReturn, TypeAlias
from unicodedata import combining, east_asian_width

from django.core.management.base import BaseCommand, CommandError

Paint: TypeAlias = Callable[[str], str]
Row: TypeAlias = tuple[Paint, Sequence[str]]
"""A line of a table: its colour, its cells."""

GAP = "  "
"""The space between two columns."""

TEXT_COLUMNS, MIN_TEXT_WIDTH = ("NAME", "HOLDER", "WAITER", "TASK", "METADATA"), 8
"""The columns whose cells a narrow terminal cuts first, and how wide they stay at first."""


def plain(text: str) -> str:
    """Return `text` without a colour."""
    return text


def open_closed_streams() -> None:
    """Connect streams that the shell closed (``2>&-``) to the null device. Python has None for
    them."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, closefd=False))


@contextmanager
def tolerate_closed_pipe(command: BaseCommand) -> Iterator[None]:
    """Discard the output if its reader has ended, as in ``locks list | head``."""
    try:
        yield
        command.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), command.stdout.fileno())


def stop(command: BaseCommand, text: str, status: int, paint: Paint = plain) -> NoReturn:
    """End the command with a message that is not an error, and an exit status.

    Raises:
        SystemExit: A shell started the command. The message is on stderr.
        CommandError: Code started the command, with `call_command`.
    """
    if not getattr(command, "is_command_line", False):
        raise CommandError(text, returncode=status) from None
    with suppress(OSError):  # Nobody reads stderr any more.
        command.stderr.write(text, style_func=paint)
    raise SystemExit(status)


def write(command: BaseCommand, text: str, paint: Paint = plain) -> None:
    command.stdout.write(paint(text))


def write_table(command: BaseCommand, header: Sequence[str], rows: Iterable[Row]) -> None:
    """Write a table. On a terminal, its lines fit."""
    heading: Row = command.style.MIGRATE_LABEL, header
    paints, cells = zip(heading, *rows, strict=True)
    room = get_terminal_size().columns if command.stdout.isatty() else None
    for paint, line in zip(paints, table_lines(cells, room), strict=True):
        write(command, line, paint)


def table_lines(rows: Sequence[Sequence[str]], room: int | None = None) -> Iterator[str]:
    """Yield the lines of a table with aligned columns.

    Args:
        rows: The cells. The first row is the header.
        room: How many columns of the terminal the lines may take. An empty TASK column is left
            out first. Then cells are cut, the longest text first.
    """
    columns = {header: [header, *cells] for header, *cells in zip(*rows, strict=True)}

    def excess() -> int:
        return sum(widths.values()) + len(GAP) * (len(widths) - 1) - room if room else 0

    widths = {name: max(map(width, cells)) for name, cells in columns.items()}
    if excess() > 0 and set(columns.get("TASK", ())) == {"TASK", "-"}:
        del widths["TASK"]
    for _ in range(excess()):
        texts = [name for name in TEXT_COLUMNS if widths.get(name, 0) > MIN_TEXT_WIDTH]
        widths[max(texts or widths, key=widths.__getitem__)] -= 1
    shown = ([padded(cell, wide) for cell in columns[name]] for name, wide in widths.items())
    for row in zip(*shown, strict=True):
        yield GAP.join(row).rstrip()


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
