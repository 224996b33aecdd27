"""The table of what was found: a row for each scenario."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

BEGIN = "<!-- faults: written by `make faults` -->"
END = "<!-- faults: end -->"

HEAD = (
    *("Scenario", "Servers", "Runs", "Acquisitions", "Faults injected", "Overlaps"),
    *("Stale writes with fencing token", "Stale writes without"),
    *("Worst time until free", "Lost wake-ups", "Leftovers"),
)


@dataclass(frozen=True)
class Row:
    number: int
    title: str
    servers: tuple[str, ...]
    runs: int
    operations: int  # acquisitions that succeeded
    faults: int
    overlaps: int
    stale: int
    stale_without_fence: int
    # Seconds from a fault that left a lock to the next who held it, at worst.
    until_free: float | None
    lost_wakeups: int
    leftovers: int  # keys, connections and locks that nobody alive holds
    promised: bool  # whether the docs promise exclusion here
    notes: tuple[str, ...]  # what else was measured
    failures: tuple[str, ...] = ()  # what does not hold
    is_wrong: bool = False  # whether any of it is more than that something came too late

    def cells(self) -> tuple[str, ...]:
        return (
            title(self.number, self.title),
            ", ".join(self.servers),
            f"{self.runs:,}",
            f"{self.operations:,}",
            f"{self.faults:,}",
            f"{self.overlaps:,}" if self.promised else f"{self.overlaps:,} (not promised)",
            f"{self.stale:,}",
            f"{self.stale_without_fence:,}",
            "" if self.until_free is None else f"{self.until_free:.2f} s",
            f"{self.lost_wakeups:,}",
            f"{self.leftovers:,}",
        )


def title(number: int, text: str) -> str:
    return f"({number}) {text}"


def table_of(rows: Iterable[Row]) -> str:
    """The table in Markdown, and below it what else was measured."""
    rows = list(rows)
    rule = ["---", "---", *["--:"] * (len(HEAD) - 2)]
    lines = [markdown(HEAD, rule, *(row.cells() for row in rows))]
    notes = [f"- {title(row.number, row.title)}: {note}" for row in rows for note in row.notes]
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
    """Put it between two markers of the page."""
    before, found, rest = page.read_text().partition(begin)
    _, also_found, after = rest.partition(end)
    assert all((found, also_found)), f"{page} lacks its markers"
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def titles(page: Path) -> list[str]:
    """The first cells of the page's table, but for its head."""
    between = page.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = [line for line in between.splitlines() if line.startswith("| (")]
    return [row.split(" | ")[0].removeprefix("| ") for row in rows]
