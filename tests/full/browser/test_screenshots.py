"""Screenshots of a busy shop for the docs. `make screenshots` keeps them, in `SCREENSHOTS`."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools import ROOT

from .browser import Tab
from .pages import LIST, ask_to_release, path_of
from .shop import SHOWN, busy_shop

IMAGES = ROOT / "docs" / "images"

TALLEST = 1300
"""Maximum height of a picture in pixels."""

SCHEMES = ("light", "dark")

BOTTOM = """
const content = document.getElementById('content-main');
return Math.ceil(content.getBoundingClientRect().bottom + scrollY) + 24;
"""
"""Where the content of the page ends, so that a picture shows no empty space."""


PAGES = {
    "list": LIST,
    "lock": path_of(SHOWN),
    "dashboard": f"{LIST}dashboard/",
    "release": path_of(SHOWN),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(os.environ.get("SCREENSHOTS", tmp_path))


@pytest.fixture
def shop(redis_server) -> Iterator[None]:
    with busy_shop(redis_server):
        yield


def test_pictures_of_a_busy_shop(shop, tab: Tab, releaser, folder: Path) -> None:
    tab.open(LIST)
    tab.script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
    # Stop all countdowns in the page.
    tab.cdp("Page.addScriptToEvaluateOnNewDocument", source="performance.now = () => 0")
    for scheme in SCHEMES:
        tab.emulate(scheme=scheme)
        for name, path in PAGES.items():
            tab.open(path)
            if name == "release":
                ask_to_release(tab)
            picture = tab.picture(tallest=min(TALLEST, tab.script(BOTTOM)))
            folder.joinpath(f"{name}-{scheme}.png").write_bytes(picture)


def test_the_docs_have_a_picture_of_each() -> None:
    wanted = {f"{name}-{scheme}.png" for name in PAGES for scheme in SCHEMES}
    assert {path.name for path in IMAGES.glob("*.png")} == wanted
