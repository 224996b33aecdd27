"""Pages are accessible and fit their window: light and dark, and in each language."""

import pytest

from django_redislock import locks

from .axe import serious_violations
from .browser import Tab
from .pages import LIST, RELEASE, path_of

PATHS = [LIST, f"{LIST}?q=none", path_of("invoice:1"), f"{LIST}dashboard/", RELEASE]


@pytest.mark.parametrize(
    ("scheme", "language"),
    [("light", "en"), ("dark", "en"), ("light", "de"), ("light", "zh-hans")],
)
def test_pages_are_accessible_and_fit(
    tab: Tab, releaser, hold, scheme: str, language: str
) -> None:
    tab.emulate(scheme=scheme)
    tab.log_in(language, name="django_language")
    hold("invoice:1", metadata={"site": 1}).release()
    hold("invoice:1", metadata={"site": 1})
    hold("invoice:2", auto_renewal=False)
    assert not locks.lock("invoice:1").acquire(blocking=False)
    for path in PATHS:
        if path == RELEASE:
            tab.open(path_of("invoice:1"))
            tab.follow(tab.all("button", within=tab.get("main"))[0])
        else:
            tab.open(path)
        assert tab.path == path
        assert tab.script("return document.documentElement.lang") == language
        assert not tab.scrolls_sideways(), path
        assert serious_violations(tab) == [], path


def test_a_dark_page_is_dark(tab: Tab, viewer) -> None:
    tab.open(LIST)
    light = _brightness(tab)
    tab.emulate(scheme="dark")
    assert light > 200
    assert _brightness(tab) < 60


def _brightness(tab: Tab) -> float:
    color = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    return sum(tab.script(color)[:3]) / 3
