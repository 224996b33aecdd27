"""A pytest plugin that makes the table of cases in the docs from a run of the tests.

``make cases`` calls it with ``--cases PAGE``: it writes the table into that page, between the two
markers.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.table import markdown, write

BEGIN = "<!-- cases: written by `make cases` -->"
END = "<!-- cases: end -->"

Cell = dict[str, Any]

_cells: list[Cell] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", type=Path, metavar="PAGE", help="write the table into that page")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # The cells of other processes travel with their reports.
    if report.when == "call" and report.passed:
        _cells.extend(value for name, value in report.user_properties if name == "cell")


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    table = table_of(_cells)
    terminalreporter.write_line(f"\n{table}")
    page = config.getoption("--cases")
    if page is None:
        return
    if exitstatus:
        terminalreporter.write_line(f"{page} stays as it is: not all tests passed")
    else:
        write(page, table, BEGIN, END)


def table_of(cells: Iterable[Cell]) -> str:
    """Return a Markdown table with a row for each test, in order, and a column for each mode."""
    rows: dict[int, dict[str, Cell]] = {}
    for cell in cells:
        rows.setdefault(cell["line"], {})[cell["mode"]] = cell
    modes = [mode for mode in _modes() if any(mode in row for row in rows.values())]
    head = ["Case", *(f"`{mode}`" for mode in modes)]
    lines = [head, ["---"] * len(head), *(_row(rows[line], modes) for line in sorted(rows))]
    return markdown(*lines)


def _modes() -> tuple[str, ...]:
    from .cases_app import MODES  # needs the settings

    return MODES


def _row(row: dict[str, Cell], modes: Iterable[str]) -> list[str]:
    first = next(iter(row.values()))
    title = f"{first['title']}<br>`{first['row']}`"
    return [title, *(_text(row[mode]) if mode in row else "" for mode in modes)]


def _text(cell: Cell) -> str:
    within = cell["within"]
    lock = cell["lock"] if within is None else f"{cell['lock']}: {_seconds(within)}"
    return f"{lock}<br>{cell['work']}"


def _seconds(seconds: float) -> str:
    return "under 0.1 s" if seconds < 0.1 else f"{seconds:.1f} s"


def read(page: Path) -> list[list[str]]:
    """Return the cells of the page's table, row by row, without the separator row."""
    between = page.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = [line for line in between.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]
    return cells[:1] + cells[2:]
