"""What the other tests rely on: a fresh tab, what it emulates, and what it complains of."""

import pytest

from .browser import Tab

pytestmark = [pytest.mark.slow, pytest.mark.urls("tests.browser.harness_urls")]


def matches(tab: Tab, query: str) -> bool:
    return tab.script("return matchMedia(arguments[0]).matches", query)


def keep_something(tab: Tab) -> None:
    tab.log_in("theirs")
    tab.open("/plain/")
    tab.script("localStorage.setItem('kept', 'yes')")
    tab.emulate(scheme="dark")
    tab.without_scripts()


@pytest.mark.parametrize("turn", [1, 2])
def test_a_tab_has_nothing_of_the_one_before(tab: Tab, turn: int) -> None:
    tab.open("/plain/")

    assert tab.driver.get_cookies() == []
    assert tab.script("return localStorage.length") == 0
    assert not matches(tab, "(prefers-color-scheme: dark)")

    keep_something(tab)


@pytest.mark.parametrize(
    ("emulated", "query"),
    [
        ({"scheme": "dark"}, "(prefers-color-scheme: dark)"),
        ({"scheme": "light"}, "(prefers-color-scheme: light)"),
        ({"media": "print"}, "print"),
        ({"reduced_motion": True}, "(prefers-reduced-motion: reduce)"),
    ],
)
def test_media_are_emulated(tab: Tab, emulated: dict, query: str) -> None:
    tab.open("/plain/")
    tab.emulate(**emulated)
    assert matches(tab, query)


def test_a_page_is_hidden_and_shown(tab: Tab) -> None:
    tab.open("/plain/")
    assert tab.script("return document.visibilityState") == "visible"
    tab.hide()
    assert tab.script("return document.visibilityState") == "hidden"
    tab.show()
    assert tab.script("return document.visibilityState") == "visible"


def test_the_viewport_is_as_wide_as_told(tab: Tab) -> None:
    tab.open("/plain/")
    assert tab.script("return innerWidth") == 1280
    tab.resize(400, 800)
    assert tab.script("return innerWidth") == 400


def test_elements_are_found_by_role_and_name_without_scripts(tab: Tab) -> None:
    tab.without_scripts()
    tab.open("/plain/")
    assert tab.names("heading") == ["A page"]
    tab.expect_complaint("Applying inline style violates")

    tab.follow(tab.get("link", "On"))

    assert tab.path == "/styled/"
    assert tab.all("link") == []


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("/styled/", "Applying inline style violates"),
        ("/scripted/", "Executing inline script violates"),
        ("/missing/", "status of 404"),
    ],
)
def test_what_a_page_does_wrong_is_told(tab: Tab, path: str, complaint: str) -> None:
    tab.open(path)
    (told,) = tab.wait(tab.complaints)
    assert complaint in told

    tab.expect_complaint(complaint)
    assert tab.complaints() == []


def test_what_was_expected_has_to_come(tab: Tab) -> None:
    tab.expect_complaint("status of 404")
    tab.open("/plain/")
    assert tab.expected_in_vain() == ["status of 404"]

    tab.open("/missing/")


def test_a_page_without_scripts_runs_none(tab: Tab) -> None:
    tab.without_scripts()
    tab.open("/scripted/")
    assert tab.driver.title == "A page"
