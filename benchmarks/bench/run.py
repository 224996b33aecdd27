"""Measure all figures at one distance from the server, in a process of its own."""

import gc
import logging
import time
from collections.abc import Collection

from . import places, report, rounds
from .figure import Bench, Figure


def measured_figures(bench: Bench, only: Collection[str]) -> tuple[dict[str, Figure], int]:
    """Return the figures, and how many portions were measured again."""
    places.set_up(bench.url)
    from .figures import EVERYWHERE, LOOPBACK_ONLY, figures_at  # they need the settings

    unknown = set(only) - {*EVERYWHERE, *LOOPBACK_ONLY}
    if unknown:
        known = ", ".join([*EVERYWHERE, *LOOPBACK_ONLY])
        raise ValueError(f"Unknown figures {', '.join(sorted(unknown))}. Known are {known}.")

    logging.getLogger("redis_lock").setLevel(logging.ERROR)  # it logs each acquisition
    measured = {}
    with places.aliases(default=bench.url):
        gc.freeze()  # exclude existing objects from the collections between rounds
        for key, figure in figures_at(bench.round_trip).items():
            if only and key not in only:
                continue
            begun = time.monotonic()
            measured[key] = figure(bench)
            places.empty(bench.direct_url)
            print(
                f"{key}, {report.distance(bench.round_trip * 1000)}: "
                f"{time.monotonic() - begun:.0f} s",
                flush=True,
            )
    return measured, len(rounds.repeated)
