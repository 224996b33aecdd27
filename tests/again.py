"""A pytest plugin that repeats a test if it failed while the machine lost time.

A lease of one second expires if the host pauses the machine for a second, so such a failure says
nothing about the package. pytest reports each repetition as RERUN.
"""

import threading
import time
from functools import partial

import pytest

from .stolen import MIN_STOLEN_SECONDS, Stolen, wait_for_calm

STOLEN, DELAYS = pytest.StashKey[Stolen](), pytest.StashKey[float]()

SAMPLE_SECONDS = 0.02

LATE_SECONDS = 0.1
"""A thread that wakes up this late had no processor, because the machine was paused or busy."""


class Delays(threading.Thread):
    """Adds up how long a thread that is ready to run gets no processor."""

    seconds = 0.0

    def run(self) -> None:
        while True:
            began = time.monotonic()
            time.sleep(SAMPLE_SECONDS)
            late = time.monotonic() - began - SAMPLE_SECONDS
            if late > LATE_SECONDS:
                self.seconds += late


delays = Delays(name="tests-delays", daemon=True)


def pytest_sessionstart() -> None:
    delays.start()


@pytest.hookimpl(tryfirst=True)  # before pytest-rerunfailures looks for its marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.flaky(reruns=4, condition=partial(_lost_time, item)))


def _lost_time(item: pytest.Item) -> bool:
    late = delays.seconds - item.stash[DELAYS]
    return item.stash[STOLEN].seconds + late >= MIN_STOLEN_SECONDS


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if STOLEN in item.stash:
        wait_for_calm()
    item.stash[STOLEN], item.stash[DELAYS] = Stolen(), delays.seconds
