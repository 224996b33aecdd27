"""Screenshots of a busy shop for the docs. `make screenshots` keeps them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.urls import reverse

from tests.tools import ROOT

from .axe import serious_violations
from .browser import Tab
from .pages import LIST, ask_to_release, path_of
from .shop import NOW, SHOWN, busy_shop
from .timed_server import TimedServer

IMAGES = ROOT / "docs" / "images"

TALLEST = 1300
"""Maximum height of a picture in pixels."""

MOST = 200_000
"""Maximum size of a picture in bytes."""

SCHEMES = ("light", "dark")

BOTTOM = """
const content = document.getElementById('content-main');
return Math.ceil(content.getBoundingClientRect().bottom + scrollY) + 24;
"""
"""Where the content of the page ends, so that a picture shows no empty space."""


def list_of_locks(tab: Tab) -> None:
    tab.open(LIST)


def dashboard(tab: Tab) -> None:
    tab.open(reverse("admin:django_redislock_activelock_dashboard"))


def one_lock(tab: Tab) -> None:
    tab.open(path_of(SHOWN))


def release(tab: Tab) -> None:
    one_lock(tab)
    ask_to_release(tab)


PAGES: dict[str, Callable[[Tab], None]] = {
    "list": list_of_locks,
    "lock": one_lock,
    "dashboard": dashboard,
    "release": release,
}


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = request.config.getoption("--screenshots", default=None) or tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def server(tmp_path: Path, settings) -> Iterator[TimedServer]:
    with TimedServer.running(tmp_path, NOW) as server:
        entry = settings.CACHES["default"] | {"LOCATION": server.url}
        settings.CACHES = {**settings.CACHES, "default": entry}
        with busy_shop(server):
            yield server


def test_pictures_of_a_busy_shop(server, tab: Tab, releaser, folder: Path) -> None:
    tab.open(LIST)
    tab.script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
    # Stop all countdowns in the page.
    tab.cdp("Page.addScriptToEvaluateOnNewDocument", source="performance.now = () => 0")
    for scheme in SCHEMES:
        tab.emulate(scheme=scheme)
        for name, go in PAGES.items():
            server.stop_at(NOW)
            go(tab)
            picture = tab.picture(tallest=min(TALLEST, tab.script(BOTTOM)))
            _is_well_made(tab, picture)
            folder.joinpath(f"{name}-{scheme}.png").write_bytes(picture)
    server.go_from(NOW)


def _is_well_made(tab: Tab, picture: bytes) -> None:
    assert len(picture) < MOST
    assert serious_violations(tab) == []
    assert not tab.scrolls_sideways()
    assert tab.complaints() == []


def test_the_docs_have_a_picture_of_each() -> None:
    wanted = {f"{name}-{scheme}.png" for name in PAGES for scheme in SCHEMES}
    assert {path.name for path in IMAGES.glob("*.png")} == wanted
