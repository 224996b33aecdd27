"""A pytest plugin: a test that fails while its machine was not there is asked again.

A lease of one second is lost where a host stands still for a second. Such a failure says nothing
about this package. It is asked again once the machine is calm, and each repetition is told at the
end, as ``RERUN``.
"""

import time
from functools import partial

import pytest

from .stolen import Stolen

MUCH = 0.2
"""Seconds of the processors' time that are stolen during a test which may fail by that alone."""

TIMES = 4
"""Times that a test may be asked again."""

CALM = 0.05
"""The share of the processors' time that others may take on a machine that is calm."""

CALM_WITHIN = 60
"""Seconds to wait for that. A machine that is never calm is taken as it is."""

SINCE = pytest.StashKey[Stolen]()


@pytest.hookimpl(tryfirst=True)  # before pytest-rerunfailures looks for its marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.flaky(reruns=TIMES, condition=partial(_was_away, item)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if SINCE in item.stash:
        _wait_for_calm()
    item.stash[SINCE] = Stolen()


def _was_away(item: pytest.Item) -> bool:
    return item.stash[SINCE].seconds >= MUCH


def _wait_for_calm(interval: float = 0.5) -> None:
    deadline = time.monotonic() + CALM_WITHIN
    while time.monotonic() < deadline:
        stolen = Stolen()
        time.sleep(interval)
        if stolen.share < CALM:
            return
