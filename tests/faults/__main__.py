"""``python -m tests.faults``: let the scenarios happen, and tell what was found."""

import argparse
import os
import platform
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers import MAKES
from tests.stolen import Stolen, wait_for_calm

if TYPE_CHECKING:
    from .scenario import Scenario
    from .table import Row

TRIES = 3  # times that a scenario may happen, as long as its machine is at fault

MUCH = 0.03  # the share of the processors' time that others take where a machine is not its own


def main() -> int:
    options = _options()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    os.environ["WAITERS"] = str(options.waiters)
    import django

    django.setup()
    from . import scenarios, table

    print(f"seed {options.seed}", flush=True)
    began = time.monotonic()
    chosen = [each for each in scenarios.ALL if not options.only or each.number in options.only]
    rows = [happen(each, options) for each in chosen if each.alone]
    with ThreadPoolExecutor(options.jobs) as pool:
        rows += pool.map(partial(happen, options=options), (e for e in chosen if not e.alone))
    rows.sort(key=lambda row: row.scenario.number)
    text = f"{table.table_of(rows)}\n\n{_circumstances(options.seed, time.monotonic() - began)}"
    print(f"\n{text}")
    failed = any(row.failures for row in rows)
    if options.write and failed:
        print(f"{options.write} stays as it is: not everything holds")
    elif options.write:
        table.write(options.write, text)
    return int(failed)


def happen(scenario: "Scenario", options: argparse.Namespace) -> "Row":
    """What was found. A result that was only too late, while others had taken the machine's
    processors, proves nothing; then the scenario happens again."""
    from .scenario import Setting

    for tries_left in reversed(range(TRIES)):
        began, stolen = time.monotonic(), Stolen()
        about = {"seed": options.seed, "short": options.short, "make": options.make}
        setting = Setting(scenario, only=options.run, **about)
        keep = False
        try:
            row = setting.row()
            keep = options.keep and bool(row.failures)
        finally:
            if not keep:
                setting.close()
        lines = [f"{' | '.join(row.cells())} ({time.monotonic() - began:.1f} s)"]
        lines += [f"  FAILED (seed {options.seed}): {failure}" for failure in row.failures]
        lines += [f"  its history is in {setting.folder}"] * keep
        print("\n".join(lines), flush=True)
        if row.is_wrong or not row.failures or not tries_left or (share := stolen.share) < MUCH:
            break
        print(f"  AGAIN: meanwhile {share:.0%} of the processors were stolen", flush=True)
        wait_for_calm()
    return row


def _circumstances(seed: int, seconds: float) -> str:
    import redis

    libraries = f"Python {platform.python_version()}, redis-py {redis.__version__}"
    return f"Seed {seed}; {seconds / 60:.0f} minutes on {os.cpu_count()} cores, {libraries}."


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    add = parser.add_argument
    add("--short", action="store_true", help="fewer runs, in about three minutes")
    add(
        "--only",
        type=lambda text: [*map(int, text.split(","))],
        metavar="1,6",
        help="these scenarios alone",
    )
    add("--seed", type=int, default=random.randrange(1_000_000), help="of all random choices")
    add("--run", type=int, metavar="N", help="this run of each scenario alone")
    add("--make", choices=MAKES, help="of all servers, where the seed may choose")
    add("--waiters", type=int, default=1, help="the threads or tasks of each client that waits")
    add("--jobs", type=int, default=2, metavar="N", help="so many scenarios at a time")
    add("--keep", action="store_true", help="keep the history of a scenario that fails")
    add("--write", type=Path, metavar="PAGE", help="write the table into that page")
    options = parser.parse_args()
    if options.write and (options.short or options.only or options.run or options.make):
        parser.error("--write is for all runs of all scenarios")
    return options


if __name__ == "__main__":
    sys.exit(main())
