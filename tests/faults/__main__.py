"""``python -m tests.faults``: let the scenarios happen, and tell what was found."""

import argparse
import os
import random
import sys
import time
from pathlib import Path


def main() -> int:
    options = _options()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django

    django.setup()
    from . import table
    from .scenario import SCENARIOS, Setting
    from .scenarios import __name__ as _  # noqa: F401  registers them

    chosen = [
        each for each in SCENARIOS if options.only in (None, []) or each.number in options.only
    ]
    print(f"seed {options.seed}", flush=True)
    rows, began = [], time.monotonic()
    for each in chosen:
        since = time.monotonic()
        setting = Setting(each, seed=options.seed, short=options.short, only=options.run)
        row = setting.row()
        rows.append(row)
        print(" | ".join(row.cells()), f"({time.monotonic() - since:.1f} s)", flush=True)
        for failure in row.failures:
            print(f"  FAILED (seed {options.seed}): {failure}", flush=True)
        if options.keep and row.failures:
            print(f"  its history is in {setting.folder}", flush=True)
        else:
            setting.close()
    text = table.table_of(rows)
    print(f"\n{text}\n\n{time.monotonic() - began:.0f} s, seed {options.seed}")
    failed = any(row.failures for row in rows)
    if options.write and failed:
        print(f"{options.write} stays as it is: not everything holds")
    elif options.write:
        table.write(options.write, text)
    return int(failed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    add = parser.add_argument
    add("--short", action="store_true", help="fewer runs, in less than 90 seconds")
    add("--only", type=_numbers, metavar="1,6", help="these scenarios alone")
    add("--seed", type=int, default=random.randrange(1_000_000), help="of all random choices")
    add("--run", type=int, metavar="N", help="this run of each scenario alone")
    add("--keep", action="store_true", help="keep the history of a scenario that fails")
    add("--write", type=Path, metavar="PAGE", help="write the table into that page")
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
