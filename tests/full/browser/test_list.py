"""The list of active locks in a browser: live refresh, countdowns, checkboxes."""

import re

from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select

from .browser import Tab
from .pages import LIST, ask_to_release_selected, confirm, lists

BOX = "Select this object for an action - "

COUNT_REFRESHES = """
window.refreshes = 0;
document.addEventListener('redislock:refreshed', () => window.refreshes++);
"""

FIGURES = """
return [...document.querySelectorAll('[data-age], [data-left], #redislock-time')]
    .map((each) => each.textContent)
    .concat([...document.querySelectorAll('meter')].map((each) => String(each.value)));
"""

ROUND_OTHERWISE = """
document.querySelectorAll('[data-age]').forEach((each) => each.dataset.age -= -0.1);
"""
"""As if the server rounded the times in another way than the script."""

PASS_TWO_MINUTES = """
const theirs = performance.now.bind(performance);
performance.now = () => theirs() + 120000;
window.ticks = 0;
setInterval(() => window.ticks++, 1000);
"""


def refresh_every(tab: Tab, seconds: int) -> None:
    tab.script(COUNT_REFRESHES)
    Select(tab.get("combobox", "Auto-refresh:")).select_by_value(str(seconds))


def wait_for_refresh(tab: Tab, times: int = 1) -> None:
    """Wait for `times` further refreshes. The first may have begun before."""
    wanted = tab.script("return window.refreshes") + times
    tab.wait(lambda: tab.script("return window.refreshes") >= wanted, "a refresh")


def two_minutes_later(tab: Tab) -> list[str]:
    """Let two minutes pass in the page, and return its figures after it has updated them."""
    tab.script(PASS_TWO_MINUTES)
    tab.wait(lambda: tab.script("return window.ticks") >= 2, "two updates")
    return tab.script(FIGURES)


def box(tab: Tab, name: str):
    return tab.get("checkbox", BOX + name)


def status(tab: Tab) -> str:
    return tab.driver.find_element(By.ID, "redislock-status").text


def test_refresh_is_on_until_it_is_turned_off_and_shows_changes(tab: Tab, releaser, hold) -> None:
    tab.open(LIST)
    tab.wait_for_text("No lock is held now.")
    assert Select(tab.get("combobox", "Auto-refresh:")).first_selected_option.text == "Every 5 s"

    lock = hold("invoice:42")
    tab.wait(lambda: lists(tab, "invoice:42"))
    hold("report")
    tab.wait(lambda: lists(tab, "report"))
    tab.wait_for_text("2 active locks")
    lock.release()
    tab.wait(lambda: not lists(tab, "invoice:42"))
    assert status(tab) == ""

    refresh_every(tab, 0)
    tab.open(LIST)
    assert Select(tab.get("combobox", "Auto-refresh:")).first_selected_option.text == "Off"


def test_refresh_keeps_the_query_the_place_the_boxes_and_the_focus(
    tab: Tab, releaser, hold
) -> None:
    for number in range(40):
        hold(f"a:{number:02}")
    tab.open(f"{LIST}?q=a%3A&kind=mutex&o=-0")
    refresh_every(tab, 2)
    box(tab, "a:20").click()
    place = tab.script("window.scrollTo(0, 500); return window.scrollY")

    hold("b")
    hold("a:99")
    tab.wait(lambda: lists(tab, "a:99"))

    assert not lists(tab, "b")
    assert tab.script("return window.scrollY") == place
    assert box(tab, "a:20").is_selected()
    assert "1 of 41 selected" in tab.text
    assert tab.driver.switch_to.active_element.accessible_name == BOX + "a:20"


def test_a_checked_lock_stays_the_one_that_was_seen(tab: Tab, releaser, hold) -> None:
    first, freed = hold("invoice:42"), hold("invoice:43")
    hold("other")
    tab.open(LIST)
    box(tab, "invoice:42").click()
    box(tab, "invoice:43").click()
    freed.release()
    first.release()
    second = hold("invoice:42")
    refresh_every(tab, 2)
    tab.wait_for_text("Selected, but not on this page now (1):")
    wait_for_refresh(tab, 2)
    assert box(tab, "invoice:42").is_selected()

    ask_to_release_selected(tab, "other")

    tab.wait_for_text("“invoice:42” changed hands")
    tab.wait_for_text("“invoice:43” was released.")
    confirm(tab)
    assert second.owned()


def test_durations_count_between_two_refreshes(tab: Tab, viewer, hold) -> None:
    hold("short", timeout=5, auto_renewal=False)
    hold("renewed", timeout=3)
    hold("invoice:42", timeout=60, auto_renewal=False)
    tab.open(LIST)
    refresh_every(tab, 15)
    meter = tab.get("meter", "Left of a lease of 1m 00s")
    value = float(meter.get_property("value"))

    tab.wait(lambda: float(meter.get_property("value")) < value - 4, "the meter to fall")

    def left_of(name: str) -> float:
        row = tab.driver.find_element(By.XPATH, f"//tr[.//a[text()='{name}']]")
        return float(row.find_element(By.CSS_SELECTOR, "[data-left]").text.rstrip("s"))

    assert left_of("invoice:42") < value - 3
    assert left_of("renewed") >= 1.9  # a renewal is assumed when it is due
    tab.wait_for_text("0.0s of 5.0s")


def test_a_list_that_is_not_refreshed_says_what_was_true(tab: Tab, viewer, hold) -> None:
    lock = hold("invoice:42")
    tab.open(LIST)
    refresh_every(tab, 0)
    tab.open(LIST)
    assert re.search(r"As of \d\d:\d\d:\d\d", tab.text)
    figures = tab.script(FIGURES)
    tab.script(ROUND_OTHERWISE)
    lock.release()

    assert two_minutes_later(tab) == figures
    assert lists(tab, "invoice:42")


def test_a_failed_refresh_is_reported_and_repeated(tab: Tab, viewer, hold, settings) -> None:
    def is_offline(value: bool) -> None:
        speed = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        tab.cdp("Network.emulateNetworkConditions", offline=value, **speed)

    lock, caches = hold("invoice:42"), settings.CACHES
    away = {**caches["default"], "LOCATION": "redis://127.0.0.1:1/0"}
    tab.open(LIST)
    refresh_every(tab, 2)
    tab.cdp("Network.enable")
    tab.expect_complaint("ERR_INTERNET_DISCONNECTED")
    is_offline(True)
    tab.wait(lambda: "could not be refreshed" in status(tab))

    tab.expect_complaint("503 (Service Unavailable)")
    settings.CACHES = {"default": away}
    is_offline(False)
    tab.wait(lambda: not tab.missing_complaints())
    assert "could not be refreshed" in status(tab)
    assert lists(tab, "invoice:42")

    settings.CACHES = caches
    lock.release()
    tab.wait(lambda: "refreshed again" in status(tab))
    assert not lists(tab, "invoice:42")

    tab.cdp("Network.deleteCookies", name="sessionid", url=tab.origin)
    tab.wait(lambda: "could not be refreshed" in status(tab))
    assert tab.path == LIST
