"""Text output: colours, encodings, tables that fit a terminal, and streams that are closed."""

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
Table: TypeAlias = Sequence[Sequence[str]]

GAP = "  "
"""The space between two columns."""


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


def write_table(
    command: BaseCommand,
    header: Sequence[str],
    rows: Iterable[Row],
    least: Mapping[str, int] | None = None,
    hideable: Sequence[str] = (),
) -> None:
    """Write a table whose lines fit the terminal.

    Args:
        least: The columns whose cells may be cut, and how wide these columns stay.
        hideable: The columns that are left out, the first one first, if cutting is not enough.
    """
    heading: Row = command.style.MIGRATE_LABEL, header
    paints, cells = zip(heading, *rows, strict=True)
    shown: Table = [[encodable(cell, command.stdout) for cell in row] for row in cells]
    if least and command.stdout.isatty():
        mark = "…" if encodable("…", command.stdout) == "…" else "..."
        shown = fitted(shown, get_terminal_size().columns, least, hideable, mark)
    for paint, line in zip(paints, aligned(shown), strict=True):
        command.stdout.write(paint(line))


def fitted(
    rows: Table, room: int, least: Mapping[str, int], hideable: Sequence[str], mark: str
) -> Table:
    """Return `rows`, whose first is the header, so that their lines fit into `room` columns.

    An empty TASK column is left out first. Then the longest cells are cut and end with `mark`,
    and columns are left out if that is not enough.
    """
    columns = {header: [header, *cells] for header, *cells in zip(*rows, strict=True)}
    widths = {name: max(map(width, cells)) for name, cells in columns.items()}

    def excess(widths: Collection[int]) -> int:
        return sum(widths) + len(GAP) * (len(widths) - 1) - room

    if excess(widths.values()) > 0 and set(columns["TASK"][1:]) <= {"-"}:
        del widths["TASK"]
    for name in hideable:
        if excess([min(wide, least.get(name, wide)) for name, wide in widths.items()]) > 0:
            widths.pop(name, None)
    for _ in range(excess(widths.values())):
        if wide := [name for name in least if widths.get(name, 0) > least[name]]:
            widths[max(wide, key=widths.__getitem__)] -= 1
    cut_columns = [[cut(cell, widths[name], mark) for cell in columns[name]] for name in widths]
    return [*zip(*cut_columns, strict=True)]


def cut(text: str, columns: int, mark: str) -> str:
    if width(text) <= columns:
        return text
    widths = accumulate(map(width, text))
    return "".join(c for c, w in zip(text, widths, strict=True) if w + len(mark) <= columns) + mark


def aligned(rows: Table) -> Iterator[str]:
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = (cell + " " * (w - width(cell)) for cell, w in zip(row, widths, strict=True))
        yield GAP.join(padded).rstrip()


def width(text: str) -> int:
    """Return how many columns of a terminal `text` takes."""
    if text.isascii():
        return len(text)
    return sum(1 + (east_asian_width(c) in "WF") for c in text if not combining(c))
