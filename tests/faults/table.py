"""The table of results, with a row for each scenario."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .checker import Findings

if TYPE_CHECKING:
    from .scenario import Scenario

BEGIN = "<!-- faults: written by `make faults` -->"
END = "<!-- faults: end -->"

HEAD = (
    *("Scenario", "Servers", "Runs", "Acquisitions", "Faults injected"),
    *("Overlaps, believed", "Overlaps, did"),
    *("Stale writes with fencing token", "Stale writes without"),
    *("Worst time until free", "Lost wake-ups", "Leftovers"),
)


@dataclass(frozen=True)
class Row:
    scenario: "Scenario"
    servers: tuple[str, ...]
    runs: int
    found: Findings
    notes: tuple[str, ...]  # other measurements
    failures: tuple[str, ...] = ()
    is_wrong: bool = False  # whether a failure cannot be explained by a slow machine

    def cells(self) -> tuple[str, ...]:
        found, worst = self.found, max(self.found.until_free, default=None)
        numbers = [
            f"{number:,}"
            for number in (
                *(self.runs, len(found.holds), len(found.faults)),
                *(len(found.overlaps), len(found.overlaps_of_sections)),
                *(len(found.stale), len(found.stale_without_fence), len(found.lost_wakeups)),
                len(found.leftovers) + len(found.phantoms),
            )
        ]
        if not self.scenario.is_exclusive:
            numbers[3] += " (not promised)"
        numbers.insert(7, "" if worst is None else f"{worst:.2f} s")
        return (self.scenario.label, ", ".join(self.servers), *numbers)


def table_of(rows: Iterable[Row]) -> str:
    """Return a Markdown table, and a list of the other measurements."""
    rows = list(rows)
    rule = ["---", "---", *["--:"] * (len(HEAD) - 2)]
    lines = [markdown(HEAD, rule, *(row.cells() for row in rows))]
    notes = [f"- {row.scenario.label}: {note}" for row in rows for note in row.notes]
    return "\n".join([totals(rows), "", *lines, *([""] if notes else []), *notes])


def totals(rows: Iterable[Row]) -> str:
    cells = [row.cells() for row in rows]
    runs, acquisitions, faults = (
        sum(int(each[column].replace(",", "")) for each in cells) for column in (2, 3, 4)
    )
    return (
        f"{len(cells)} scenarios in {runs:,} runs: {acquisitions:,} acquisitions, "
        f"{faults:,} injected faults."
    )


def markdown(*rows: Iterable[str]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def write(page: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Write `text` between two markers of the page."""
    before, found, rest = page.read_text().partition(begin)
    _, also_found, after = rest.partition(end)
    assert all((found, also_found)), f"{page} lacks its markers"
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def titles(page: Path) -> list[str]:
    """Return the first cells of the page's table, without the header."""
    text = page.read_text().partition(BEGIN)[2].partition(END)[0]
    return re.findall(r"^\| (\(.+?) \| ", text, re.MULTILINE)
