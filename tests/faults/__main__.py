"""``python -m tests.faults``: run the scenarios and report the results."""

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

from tests.stolen import Stolen, wait_for_calm

if TYPE_CHECKING:
    from .scenario import Scenario
    from .table import Row

LANES = 2  # scenarios at a time

MAX_TRIES = 3  # for a scenario that fails on a busy machine

MAX_STOLEN_SHARE = 0.03  # of processor time; above it, the machine counts as busy


def main() -> int:
    options = _options()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django

    django.setup()
    from . import scenarios, table
    from .proxy import Proxy

    Proxy.network = options.delay / 2000
    print(f"seed {options.seed}", flush=True)
    began = time.monotonic()
    chosen = [each for each in scenarios.ALL if not options.only or each.number in options.only]
    with ThreadPoolExecutor(LANES) as pool:
        rows = [*pool.map(partial(run_scenario, options=options), chosen)]
    circumstances = _circumstances(options, time.monotonic() - began)
    text = f"{table.table_of(rows)}\n\n{circumstances}"
    print(f"\n{text}")
    failed = any(row.failures for row in rows)
    if options.write and failed:
        print(f"{options.write} was not changed, because scenarios failed")
    elif options.write and options.delay:
        table.write(options.write, text, table.BEGIN_DELAYED, table.END_DELAYED)
    elif options.write:
        table.write(options.write, text)
    return int(failed)


def run_scenario(scenario: "Scenario", options: argparse.Namespace) -> "Row":
    """Run a scenario. Repeat it if it was only too slow while other processes used the processors,
    because such a result proves nothing."""
    from .scenario import Setting

    for tries_left in reversed(range(MAX_TRIES)):
        began, stolen = time.monotonic(), Stolen()
        setting = Setting(scenario, seed=options.seed, short=options.short, only=options.run)
        keep = False
        try:
            row = setting.row()
            keep = options.keep and bool(row.failures)
        finally:
            if not keep:
                setting.close()
        lines = [f"{' | '.join(row.cells())} ({time.monotonic() - began:.1f} s)"]
        lines += [f"  FAILED (seed {options.seed}): {failure}" for failure in row.failures]
        lines += [f"  history: {setting.folder}"] * keep
        print("\n".join(lines), flush=True)
        share = stolen.share
        if row.is_wrong or not row.failures or not tries_left or share < MAX_STOLEN_SHARE:
            break
        print(f"  REPEATED: {share:.0%} of the processor time was stolen", flush=True)
        wait_for_calm()
    return row


def _circumstances(options: argparse.Namespace, seconds: float) -> str:
    import redis

    libraries = f"Python {platform.python_version()}, redis-py {redis.__version__}"
    network = f"a round trip of {options.delay:g} ms" if options.delay else "the loopback"
    return (
        f"Seed {options.seed}, over {network}; {seconds / 60:.0f} minutes on {os.cpu_count()} "
        f"cores, {libraries}."
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    add = parser.add_argument
    add("--short", action="store_true", help="fewer runs, in less than two minutes")
    add(
        "--only",
        type=lambda text: [*map(int, text.split(","))],
        metavar="1,6",
        help="run only these scenarios",
    )
    add("--seed", type=int, default=random.randrange(1_000_000), help="seed of all random choices")
    add("--run", type=int, metavar="N", help="run only this run of each scenario")
    add(
        "--delay",
        type=float,
        default=0,
        metavar="MS",
        help="round trip between clients and servers, except in a Cluster",
    )
    add("--keep", action="store_true", help="keep the history of a scenario that fails")
    add("--write", type=Path, metavar="PAGE", help="write the table into this page")
    options = parser.parse_args()
    if options.write and (options.short or options.only or options.run):
        parser.error("--write needs all runs of all scenarios")
    return options


if __name__ == "__main__":
    sys.exit(main())
