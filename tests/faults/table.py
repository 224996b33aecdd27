"""The table of results, with a row for each scenario."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .checker import Findings
from .judge import Verdict

if TYPE_CHECKING:
    from .scenario import Scenario

BEGIN = "<!-- faults: written by `make faults` -->"
END = "<!-- faults: end -->"

BEGIN_DELAYED = "<!-- faults with a delay: written by `make faults` -->"
END_DELAYED = "<!-- faults with a delay: end -->"

HEAD = (
    *("Scenario", "Servers", "Runs", "Acquisitions", "Faults injected"),
    *("Overlaps, believed", "Overlaps, did"),
    *("Stale writes, without fencing token", "with fencing token", "Stopped by"),
    *("Worst time until free", "Lost wake-ups", "Leftovers"),
)


@dataclass(frozen=True)
class Row:
    scenario: "Scenario"
    servers: tuple[str, ...]
    runs: int
    found: Findings
    did: Verdict
    notes: tuple[str, ...]  # other measurements
    failures: tuple[str, ...] = ()
    is_wrong: bool = False  # whether a failure cannot be explained by a slow machine

    def cells(self) -> tuple[str, ...]:
        found, did = self.found, self.did
        worst = max(found.until_free, default=None)
        believed = f"{len(found.overlaps):,}"
        if not self.scenario.is_exclusive:
            believed += " (not promised)"
        overlaps = f"{len(did.all_overlaps):,}"
        if did.paused:
            overlaps += f" ({len(did.paused):,} paused)"
        return (
            *(self.scenario.label, ", ".join(self.servers)),
            *(f"{self.runs:,}", f"{len(found.holds):,}", f"{len(found.faults):,}"),
            *(believed, overlaps),
            *(f"{len(did.stale_without_fence):,}", f"{len(did.stale):,}", self._stopped_by()),
            "" if worst is None else f"{worst:.2f} s",
            f"{len(did.waits_in_vain):,}",
            f"{len(found.leftovers) + len(found.phantoms):,}",
        )

    def _stopped_by(self) -> str:
        """Return what kept stale writes out of a register with fencing tokens."""
        counted = {"token": self.did.stopped_by_token, "look": self.did.stopped_by_look}
        return ", ".join(f"{what} {number:,}" for what, number in counted.items() if number)


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
