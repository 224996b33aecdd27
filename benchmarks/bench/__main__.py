"""``python -m benchmarks.bench`` measures all figures, prints the table, and ends with 0 if
every line holds."""

import argparse
import gc
import logging
import sys
import time
from pathlib import Path
from random import Random

from tests.servers import Node
from tests.tools import ROOT

from . import places, report, rounds
from .figure import Bench, Figure


def main() -> int:
    options = _options()
    with Node(enable_debug_command="local") as node:
        places.set_up(node.url)
        logging.getLogger("redis_lock").setLevel(logging.ERROR)  # it logs each acquisition
        with places.aliases(default=node.url):
            figures = _measured(
                Bench(node, options.quick, options.rounds, Random(options.seed)), options.only
            )
        where = report.where_it_ran(node)
    if rounds.repeated:
        where += (
            f"; {len(rounds.repeated)} portions were measured again, because the "
            f"machine's host took more than {rounds.MAX_STOLEN_SHARE:.0%} of the CPU time"
        )
    print(f"\n{where}\n\n{report.table(figures)}")
    if options.json:
        options.json.write_text(report.as_json(figures, where))
    if options.write:
        report.put_on(options.write, ROOT / "docs" / "images", figures, where)
    return 0 if report.ends_well(figures) else 1


def _measured(bench: Bench, only: list[str] | None) -> dict[str, Figure]:
    from .figures import FIGURES  # they need the settings

    unknown = set(only or ()) - set(FIGURES)
    if unknown:
        sys.exit(f"Unknown figure {', '.join(sorted(unknown))}: {', '.join(FIGURES)}")
    gc.freeze()  # exclude existing objects from the collections between rounds
    measured = {}
    for key, figure in FIGURES.items():
        if only and key not in only:
            continue
        begun = time.monotonic()
        measured[key] = figure(bench)
        bench.node.client().flushall()
        print(f"({key}) {measured[key].title}: {time.monotonic() - begun:.0f} s", flush=True)
    return measured


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench")
    parser.add_argument("--only", type=lambda text: text.split(","), help="such as a,b")
    parser.add_argument("--quick", action="store_true", help="run a short test of the program")
    parser.add_argument("--rounds", type=int, help="number of rounds of all figures")
    parser.add_argument("--seed", type=int, help="seed of the order of the contenders")
    parser.add_argument("--write", type=Path, help="write the table and the plots into this page")
    parser.add_argument("--json", type=Path, help="write all measurements into this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
