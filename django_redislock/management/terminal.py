"""What a terminal can show: which colours, which characters."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Any, TypeAlias
from unicodedata import combining, east_asian_width

from django.core.management.base import BaseCommand, OutputWrapper
from django.core.management.color import no_style

Paint: TypeAlias = Callable[[str], str]
Row: TypeAlias = tuple[Paint, Sequence[str]]
"""A line of a table: its colour, its cells."""


def choose_style(command: BaseCommand, options: dict[str, Any]) -> None:
    """Leave colours to whom they are for: Django's own options go before ``NO_COLOR``, and
    without either only a terminal gets them."""
    if options.get("force_color"):
        return
    if options.get("no_color") or os.environ.get("NO_COLOR"):
        command.style, command.stderr.style_func = no_style(), None
    elif not command.stdout.isatty():
        command.style = no_style()


def plain(text: str) -> str:
    """No colour."""
    return text


def encodable(text: str, stream: Any) -> str:
    """Return `text` with what `stream` can't encode as backslash escapes."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def open_closed_streams() -> None:
    """A stream that was closed, as by ``2>&-``, leads nowhere; Python has None for it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, closefd=False))


@contextmanager
def whoever_reads(command: BaseCommand) -> Iterator[None]:
    """What is written inside may have lost its reader, as in `locks list | head`."""
    try:
        yield
        command.stdout.flush()
    except BrokenPipeError:
        let_nobody_read(command)


def let_nobody_read(command: BaseCommand) -> None:
    """The reader of what the command writes has left, or its disk is full: what is yet to come
    goes nowhere, and what the process's own stdout still has, too."""
    out: Any = command.stdout._out
    if out is not sys.stdout:  # it is that of who called the command
        command.stdout = OutputWrapper(StringIO())
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, out.fileno())
    os.close(nowhere)


def write(command: BaseCommand, text: str, paint: Paint = plain) -> None:
    command.stdout.write(paint(encodable(text, command.stdout)))


def write_table(command: BaseCommand, header: Sequence[str], rows: Iterable[Row]) -> None:
    heading: Row = command.style.MIGRATE_LABEL, header
    paints, cells = zip(heading, *rows, strict=True)
    shown = [[encodable(cell, command.stdout) for cell in row] for row in cells]
    for paint, line in zip(paints, aligned(shown), strict=True):
        command.stdout.write(paint(line))


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = (cell + " " * (w - width(cell)) for cell, w in zip(row, widths, strict=True))
        yield "  ".join(padded).rstrip()


def width(text: str) -> int:
    """Return how many columns of a terminal `text` takes."""
    if text.isascii():
        return len(text)
    return sum(1 + (east_asian_width(c) in "WF") for c in text if not combining(c))
