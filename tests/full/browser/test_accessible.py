"""axe-core finds nothing serious on our pages, in light and in dark."""

import pytest

from .axe import serious_violations
from .browser import Tab
from .pages import LIST, path_of


@pytest.fixture(params=["light", pytest.param("dark", marks=pytest.mark.slow)])
def page(request: pytest.FixtureRequest, tab: Tab, releaser, hold) -> Tab:
    tab.emulate(scheme=request.param)
    hold("invoice:42", metadata={"site": 3})
    hold("report")
    return tab


PATHS = [LIST, LIST + "?q=voice", LIST + "?q=none", path_of("report"), LIST + "dashboard/"]


@pytest.mark.parametrize("path", PATHS)
def test_pages(page: Tab, path: str) -> None:
    page.open(path)
    assert serious_violations(page) == []


@pytest.mark.urls("tests.full.browser.harness_urls")
def test_a_field_without_a_name_is_found(tab: Tab) -> None:
    tab.open("/nameless/")
    told = "\n".join(serious_violations(tab))
    assert "image-alt" in told
    assert "label" in told
