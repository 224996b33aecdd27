"""A pytest plugin: a test that fails while its machine was not there is asked again.

A lease of one second is lost where a host stands still for a second. Such a failure says nothing
about this package. It is asked again once the machine is calm, and each repetition is told at the
end, as ``RERUN``.
"""

from functools import partial

import pytest

from .stolen import MUCH, Stolen, wait_for_calm

TIMES = 4
"""Times that a test may be asked again."""

SINCE = pytest.StashKey[Stolen]()


@pytest.hookimpl(tryfirst=True)  # before pytest-rerunfailures looks for its marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.flaky(reruns=TIMES, condition=partial(_was_away, item)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if SINCE in item.stash:
        wait_for_calm()
    item.stash[SINCE] = Stolen()


def _was_away(item: pytest.Item) -> bool:
    return item.stash[SINCE].seconds >= MUCH
