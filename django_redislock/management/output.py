"""Text output: colours, encodings, tables that fit a terminal, and streams that are closed."""

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import StringIO
from itertools import accumulate
from shutil import get_terminal_size
from typing import Any, NoReturn, TypeAlias
from unicodedata import combining, east_asian_width

from django.core.management.base import BaseCommand, CommandError, OutputWrapper
from django.core.management.color import no_style

Paint: TypeAlias = Callable[[str], str]
Row: TypeAlias = tuple[Paint, Sequence[str]]
"""A line of a table: its colour, its cells."""

GAP = "  "
"""The space between two columns."""

MIN_WIDTHS = {"NAME": 8, "HOLDER": 8, "WAITER": 8, "TASK": 6, "METADATA": 8}
"""The columns whose cells a narrow terminal cuts, and how wide they stay."""

HIDEABLE = ("KIND", "WAITED", "FENCE", "TASK")
"""The columns that a narrow terminal leaves out, the first one first, if cutting is not enough."""


def choose_style(command: BaseCommand, options: dict[str, Any]) -> None:
    """Use colours on a terminal only, and none if ``NO_COLOR`` is set. ``--force-color`` overrides
    both, and Django handles ``--no-color``."""
    is_plain = bool(os.environ.get("NO_COLOR"))
    if options["force_color"] or not (is_plain or not command.stdout.isatty()):
        return
    command.style = no_style()
    if is_plain:
        command.stderr.style_func = None


def plain(text: str) -> str:
    """Return `text` without a colour."""
    return text


def encodable(text: str, stream: Any) -> str:
    """Return `text` with a backslash escape for each character that `stream` cannot encode."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


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
        discard_output(command)


def discard_output(command: BaseCommand) -> None:
    """Discard all further output, and what the buffer of stdout still contains."""
    command.stdout = OutputWrapper(StringIO())
    try:
        sys.stdout.flush()
    except OSError:
        with open(os.devnull, "w") as nowhere:  # noqa: PTH123  a device, not a path
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def stop(command: BaseCommand, text: str, status: int, paint: Paint = plain) -> NoReturn:
    """End the command with a message that is not an error, and an exit status.

    Raises:
        SystemExit: A shell started the command. The message is on stderr.
        CommandError: Code started the command, with `call_command`.
    """
    if not getattr(command, "is_command_line", False):
        raise CommandError(text, returncode=status) from None
    with suppress(OSError, ValueError):  # Nobody reads stderr any more.
        command.stderr.write(text, style_func=paint)
    raise SystemExit(status)


def write(command: BaseCommand, text: str, paint: Paint = plain) -> None:
    command.stdout.write(paint(encodable(text, command.stdout)))


def write_table(command: BaseCommand, header: Sequence[str], rows: Iterable[Row]) -> None:
    """Write a table. On a terminal, its lines fit."""
    heading: Row = command.style.MIGRATE_LABEL, header
    paints, cells = zip(heading, *rows, strict=True)
    shown = [[encodable(cell, command.stdout) for cell in row] for row in cells]
    room = get_terminal_size().columns if command.stdout.isatty() else None
    mark = "…" if encodable("…", command.stdout) == "…" else "..."
    for paint, line in zip(paints, table_lines(shown, room, mark), strict=True):
        command.stdout.write(paint(line))


def table_lines(
    rows: Sequence[Sequence[str]], room: int | None = None, mark: str = "…"
) -> Iterator[str]:
    """Yield the lines of a table with aligned columns.

    Args:
        rows: The cells. The first row is the header.
        room: How many columns of the terminal the lines may take. An empty TASK column is left
            out first. Then the longest cells are cut, and more columns are left out.
        mark: The end of a cell that was cut.
    """
    columns = {header: [header, *cells] for header, *cells in zip(*rows, strict=True)}
    widths = {name: max(map(width, cells)) for name, cells in columns.items()}

    def excess(widths: Collection[int]) -> int:
        return sum(widths) + len(GAP) * (len(widths) - 1) - room if room is not None else 0

    if excess(widths.values()) > 0 and set(columns.get("TASK", ())) == {"TASK", "-"}:
        del widths["TASK"]
    for name in HIDEABLE:
        if excess([min(wide, MIN_WIDTHS.get(name, wide)) for name, wide in widths.items()]) > 0:
            widths.pop(name, None)
    for _ in range(excess(widths.values())):
        if wide := [name for name, least in MIN_WIDTHS.items() if widths.get(name, 0) > least]:
            widths[max(wide, key=widths.__getitem__)] -= 1
    shown = ([padded(cell, wide, mark) for cell in columns[name]] for name, wide in widths.items())
    for row in zip(*shown, strict=True):
        yield GAP.join(row).rstrip()


def padded(text: str, columns: int, mark: str) -> str:
    """Return `text` with spaces at its end, or cut."""
    if (space := columns - width(text)) < 0:
        ends = accumulate(map(width, text))
        kept = (c for c, end in zip(text, ends, strict=True) if end + len(mark) <= columns)
        text = "".join(kept) + mark
        space = columns - width(text)
    return text + " " * space


def width(text: str) -> int:
    """Return how many columns of a terminal `text` takes."""
    if text.isascii():
        return len(text)
    return sum(1 + (east_asian_width(c) in "WF") for c in text if not combining(c))
