"""Pages are accessible and fit their window: light and dark, wide and narrow, in each language."""

import pytest

from django_redislock import locks

from .axe import serious_violations
from .browser import HEIGHT, Tab
from .pages import LIST, RELEASE, path_of

PATHS = ["/admin/", LIST, f"{LIST}?q=none", path_of("invoice:1"), f"{LIST}dashboard/", RELEASE]

UNREACHABLE = """
const controls = '#content-main :is(a, button, input, select, summary)';
return [...document.querySelectorAll(controls)]
    .filter((each) => each.tabIndex < 0 && each.type !== 'hidden').length;
"""
"""Counts controls that the keyboard cannot reach."""


@pytest.mark.parametrize(
    ("scheme", "language", "width"),
    [("light", "en", 1280), ("dark", "zh-hans", 1280), ("light", "de", 390)],
)
def test_pages_are_accessible_and_fit(
    tab: Tab, releaser, hold, scheme: str, language: str, width: int
) -> None:
    tab.emulate(scheme=scheme)
    tab.resize(width, HEIGHT)
    tab.log_in(language, name="django_language")
    hold("invoice:1", metadata={"site": 1}).release()
    hold("invoice:1", metadata={"site": 1})
    hold("invoice:2", auto_renewal=False)
    assert not locks.lock("invoice:1").acquire(blocking=False)
    for path in PATHS:
        if path == RELEASE:
            tab.open(path_of("invoice:1"))
            buttons = tab.all("button", within=tab.get("main"))
            tab.follow(next(each for each in buttons if each.get_attribute("type") == "submit"))
        else:
            tab.open(path)
        assert tab.path == path
        assert tab.script("return document.documentElement.lang") == language
        assert not tab.scrolls_sideways(), path
        assert serious_violations(tab) == [], path
        assert tab.script(UNREACHABLE) == 0, path
