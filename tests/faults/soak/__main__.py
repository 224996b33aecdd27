"""``python -m tests.faults.soak``: run a soak test, and print a table of the measurements."""

import argparse
import os
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..table import markdown, write

if TYPE_CHECKING:
    from .running import Outcome, Series

BEGIN = "<!-- soak: written by `make soak` -->"
END = "<!-- soak: end -->"

IN_KIB = "memory", "data"
HEAD = "Measure", "Processes", "Value where it grew most", "Growth", "Allowed"


def summary_of(outcome: "Outcome") -> str:
    """Return a table with the process that grew most, for each measure."""
    rows = [_worst(what, outcome.series) for what in dict.fromkeys(map(_name, outcome.series))]
    rule = ["---", *["--:"] * (len(HEAD) - 1)]
    return f"{about(outcome)}\n\n{markdown(HEAD, rule, *rows)}"


def about(outcome: "Outcome") -> str:
    faults = ", ".join(f"{kind} {number}" for kind, number in outcome.faults.most_common())
    return (
        f"{outcome.seconds / 60:.0f} minutes, {outcome.rounds} rounds; "
        f"{outcome.judged + outcome.held:,} acquisitions, of which {outcome.judged:,} were "
        f"checked; {outcome.faults.total():,} faults ({faults})."
    )


def _name(series: "Series") -> str:
    return f"{series.what} (KiB)" if series.what in IN_KIB else series.what


def _worst(what: str, every: Iterable["Series"]) -> tuple[str, ...]:
    of_it = [each for each in every if _name(each) == what]
    worst = max(of_it, key=lambda each: each.growth - each.limit)
    numbers = worst.middle, worst.growth, worst.limit
    return what, str(len(of_it)), *(f"{number:,.0f}" for number in numbers)


def main() -> int:
    options = _options()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django

    django.setup()
    from .running import Soak

    print(f"seed {options.seed}", flush=True)
    outcome = Soak(options.minutes * 60, options.seed).run()
    print(summary_of(outcome))
    for failure in outcome.failures[:20]:
        print(f"FAILED: {failure}")
    print(f"{len(outcome.failures)} failures")
    if options.write and outcome.failures:
        print(f"{options.write} stays as it is: not everything holds")
    elif options.write:
        write(options.write, summary_of(outcome), BEGIN, END)
    return int(bool(outcome.failures))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, required=True, metavar="N", help="how long")
    add("--write", type=Path, metavar="PAGE", help="write what grew most into that page")
    add("--seed", type=int, default=random.randrange(1_000_000), help="of all random choices")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
