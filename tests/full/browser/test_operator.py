"""An operator searches and releases locks, with and without scripts, and no name runs as code."""

import pytest
from django.contrib.admin.models import LogEntry

from tests.tools import wait_until

from .browser import Tab
from .pages import LIST, ask_to_release, ask_to_release_selected, confirm, lists, path_of, search

NAME = (
    "<script>document.title = 'ran'</script>\"' onmouseover=document.title='ran' autofocus "
    "onfocus=document.title='ran' \N{RIGHT-TO-LEFT OVERRIDE}24" + "x" * 300
)


@pytest.mark.parametrize("scripts", [True, False])
def test_an_operator_finds_and_releases_locks(tab: Tab, releaser, hold, scripts: bool) -> None:
    if not scripts:
        tab.without_scripts()
    held = {name: hold(name, timeout=6) for name in ("a:first", "a:second", "a:third", "b")}
    tab.open(LIST)
    assert bool(tab.all("combobox", "Auto-refresh:")) is scripts
    search(tab, "a:*")
    assert not lists(tab, "b")

    ask_to_release_selected(tab, "a:first", "a:third")
    assert all(lock.locked() for lock in held.values())
    confirm(tab)
    tab.wait_for_text("Released 2 locks.")
    assert [name for name, lock in held.items() if lock.locked()] == ["a:second", "b"]

    tab.open(path_of("b"))
    ask_to_release(tab)
    tab.follow(tab.get("button", "Cancel"))
    assert held["b"].owned()
    tab.open(path_of("b"))
    ask_to_release(tab)
    confirm(tab)
    tab.wait_for_text("Released “b”.")
    wait_until(lambda: held["b"].lost)
    assert {entry.object_repr for entry in LogEntry.objects.all()} == {"a:first", "a:third", "b"}


def test_any_name_is_shown_as_text_and_fits(tab: Tab, releaser, hold) -> None:
    lock = hold(NAME, metadata={NAME: NAME})
    shown = NAME.replace("\N{RIGHT-TO-LEFT OVERRIDE}", r"\u202e")
    for page in _pages_with_the_name(tab):
        assert shown in tab.get("main").get_property("innerText"), page
        assert tab.driver.title != "ran"
        assert not tab.scrolls_sideways()
    assert not lock.locked()


def _pages_with_the_name(tab: Tab):
    """Open pages that show the only lock, up to its release."""
    tab.open(LIST)
    yield "list"
    tab.follow(tab.get("main").find_element("css selector", "tbody th a"))
    yield "lock"
    ask_to_release(tab)
    yield "confirmation"
    confirm(tab)
    yield "released"
