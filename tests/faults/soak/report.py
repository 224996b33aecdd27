"""What came of a soak, as text."""

from .flat import Series
from .running import Outcome

HEAD = "Process", "What", "First", "Middle third", "Last third", "Growth", "Allowed", ""


def text_of(outcome: Outcome) -> str:
    faults = ", ".join(f"{number} {kind}" for kind, number in outcome.faults.most_common())
    rule = ["---", "---", *["--:"] * 5, "---"]
    rows = [HEAD, rule, *map(_cells, outcome.series)]
    return "\n".join(
        [
            f"{outcome.rounds} rounds, {outcome.judged:,} acquisitions judged and "
            f"{outcome.held:,} others, {outcome.faults.total():,} faults: {faults}",
            f"{outcome.late} were passed over after a turn of which they learned too late",
            "",
            *(f"| {' | '.join(row)} |" for row in rows),
            "",
            *(f"FAILED: {failure}" for failure in outcome.failures[:20]),
            f"{len(outcome.failures)} failures, seed {outcome.seed}",
        ]
    )


def _cells(series: Series) -> tuple[str, ...]:
    numbers = series.values[0], series.middle, series.last, series.growth, series.limit
    told = [f"{number:,.0f}" for number in numbers]
    unit = " (KiB)" if series.what == "memory" else ""
    return series.who, series.what + unit, *told, "" if series.is_flat else "GROWS"
