"""The pages have room for the words of other languages, which are longer than English ones."""

import pytest

from django_redislock import locks

from .axe import serious_violations
from .browser import Tab
from .pages import LIST, RELEASE, path_of

TITLES = {
    "de": {"list": "Aktive Sperren", "dashboard": "Dashboard der Sperren", "release": "freigeben"},
    "zh-hans": {"list": "活动锁", "dashboard": "锁仪表盘", "release": "释放"},
}


@pytest.fixture(params=["de", pytest.param("zh-hans", marks=pytest.mark.slow)])
def language(request: pytest.FixtureRequest, tab: Tab, releaser, hold) -> str:
    tab.log_in(request.param, name="django_language")
    for number in range(3):
        hold(f"invoice:{number}", metadata={"site": number}).release()
        hold(f"invoice:{number}", auto_renewal=number > 1)
    assert not locks.lock("invoice:1").acquire(blocking=False)
    return request.param


def test_pages_in_other_languages_fit_and_can_be_used(tab: Tab, language: str) -> None:
    titles = TITLES[language]

    tab.open(LIST)
    _is_well_made(tab, language, titles["list"])

    tab.open(f"{LIST}dashboard/")
    _is_well_made(tab, language, titles["dashboard"])

    tab.open(path_of("invoice:1"))
    _is_well_made(tab, language, "invoice:1")

    tab.follow(tab.all("button", within=tab.get("main"))[0])
    assert tab.path == RELEASE
    _is_well_made(tab, language, titles["release"])


def _is_well_made(tab: Tab, language: str, text: str) -> None:
    tab.wait_for_text(text)
    assert tab.script("return document.documentElement.lang") == language
    assert not tab.scrolls_sideways()
    assert serious_violations(tab) == []


@pytest.mark.slow
def test_what_the_list_says_while_it_is_refreshed_is_translated(tab: Tab, language: str) -> None:
    tab.open(LIST)
    said = {
        "de": "Ausgewählt, aber gerade nicht auf dieser Seite (1):",
        "zh-hans": "已选中但当前不在此页（1）：",  # noqa: RUF001  full-width ones
    }
    tab.script(
        "document.querySelector('#result_list input.action-select').click();"
        "history.replaceState(null, '', '?q=none')"
    )
    tab.script(
        "const choice = document.querySelector('#redislock-refresh');"
        "choice.value = '2'; choice.dispatchEvent(new Event('change'))"
    )
    tab.wait_for_text(said[language])
