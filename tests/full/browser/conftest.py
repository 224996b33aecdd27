"""One Chromium for each test process, and a new tab for each test."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from django.contrib.auth.models import User
from selenium import webdriver

from tests.pages import user_with

from .browser import Tab, start

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist, which names the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Run all browser tests in one process, so that they share one Chromium.
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("browser"))


@pytest.fixture(scope="session")
def chromium() -> Iterator[webdriver.Chrome]:
    # A process of Chromium may still write for a moment after its end.
    with TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        driver = start(Path(profile))
        yield driver
        driver.quit()


@pytest.fixture
def tab(chromium: webdriver.Chrome, live_server) -> Iterator[Tab]:
    """A tab on the test's site. The test fails if a page logs a complaint to the console."""
    with Tab(chromium, live_server.url) as tab:
        yield tab
        tab.wait(lambda: not tab.missing_complaints(), "the expected complaints")
        complaints = tab.complaints()
    assert not complaints, "\n".join(complaints)


def _log_in(tab: Tab, *permissions: str) -> None:
    client = user_with(*permissions)
    User.objects.update(first_name="ada")  # the name that screenshots show
    tab.log_in(client.cookies["sessionid"].value)


@pytest.fixture
def viewer(tab: Tab) -> None:
    """The visitor may see locks."""
    _log_in(tab, "view_activelock")


@pytest.fixture
def releaser(tab: Tab) -> None:
    """The visitor may see and release locks."""
    _log_in(tab, "view_activelock", "release_activelock")
