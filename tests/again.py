"""A pytest plugin that repeats a test if it failed while the host stole time from the machine.

A lease of one second expires if the host pauses the machine for a second, so such a failure says
nothing about the package. pytest reports each repetition as RERUN.
"""

from functools import partial

import pytest

from .stolen import MIN_STOLEN_SECONDS, Stolen, wait_for_calm

STOLEN = pytest.StashKey[Stolen]()


@pytest.hookimpl(tryfirst=True)  # before pytest-rerunfailures looks for its marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.flaky(reruns=4, condition=partial(_lost_time, item)))


def _lost_time(item: pytest.Item) -> bool:
    return item.stash[STOLEN].seconds >= MIN_STOLEN_SECONDS


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if STOLEN in item.stash:
        wait_for_calm()
    item.stash[STOLEN] = Stolen()
