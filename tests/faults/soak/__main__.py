"""``python -m tests.faults.soak``: a soak, and the table of what was measured."""

import argparse
import os
import random
import sys
from pathlib import Path


def main() -> int:
    options = _options()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django

    django.setup()
    from ..table import write
    from .report import BEGIN, END, summary_of, text_of
    from .running import Soak

    print(f"seed {options.seed}", flush=True)
    with Soak(options.minutes * 60, options.seed) as soak:
        outcome = soak.run()
    print(text_of(outcome))
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
