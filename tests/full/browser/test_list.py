"""The list of active locks in a browser: live refresh, countdowns, checkboxes, columns."""

import json
import re

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from django_redislock import locks
from django_redislock.lock_types import acquisition
from django_redislock.text import short_duration
from tests.pages import acquired_before

from .browser import Tab
from .pages import LIST, ask_to_release_selected, confirm, lists, path_of

BOX = "Select this object for an action - "

COUNT_REFRESHES = """
window.refreshes = 0;
document.addEventListener('redislock:refreshed', () => window.refreshes++);
"""

COUNT_FETCHES = """
const theirs = window.fetch;
window.fetches = 0;
window.fetch = (...options) => (window.fetches++, theirs(...options));
"""

SELECT_ROWS = "getSelection().selectAllChildren(document.querySelector('.results tbody'))"

COLOUR = "return getComputedStyle(document.getElementById('redislock-status')).color"

ADD_AGE = """
const age = document.createElement('p');
age.dataset.age = arguments[0];
document.getElementById('content-main').append(age);
return age;
"""

HIDDEN_PIXELS = """
const results = document.querySelector('.results');
return results.scrollWidth - results.clientWidth;
"""

TOOLS = "#toolbar, .redislock-fold, .redislock-refresh, .actions"

TOPS = """
return [...document.querySelectorAll(arguments[0])].map((each) => {
    const box = each.getBoundingClientRect();
    return (box.top + box.bottom) / 2;
});
"""

VISIBLE_ROWS = """
return [...document.querySelectorAll('#result_list tbody tr')]
    .filter((row) => row.getBoundingClientRect().bottom <= innerHeight).length;
"""

TASK = {
    "host": "celery-worker-7d9f4",
    "pid": 1860,
    "thread": "ThreadPool-17",
    "task_name": "shop.tasks.sync_account",
    "task_id": "0b9d1c5e-5f8f-4c1e-9d0e-2a4d11b6a7c3",
}


def refresh_every(tab: Tab, seconds: int) -> None:
    tab.script(COUNT_REFRESHES)
    Select(tab.get("combobox", "Auto-refresh:")).select_by_value(str(seconds))


def wait_for_refresh(tab: Tab, times: int = 1) -> None:
    """Wait for `times` further refreshes. The first may have begun before."""
    wanted = tab.script("return window.refreshes") + times
    tab.wait(lambda: tab.script("return window.refreshes") >= wanted, "a refresh")


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
    tab.wait_for_text("1 active lock")
    tab.wait_for_text("0 of 1 selected")
    assert not tab.all("button", "Release 1 matching lock…")
    hold("report")
    tab.wait(lambda: lists(tab, "report"))
    lock.release()
    tab.wait(lambda: not lists(tab, "invoice:42"))
    assert tab.path == LIST
    assert status(tab) == ""

    refresh_every(tab, 0)
    tab.open(LIST)
    assert Select(tab.get("combobox", "Auto-refresh:")).first_selected_option.text == "Off"


def test_a_slow_page_is_refreshed_less_often(tab: Tab, viewer) -> None:
    tab.open(LIST)
    tab.script(COUNT_FETCHES)
    tab.script(SLOW_CLOCK)
    refresh_every(tab, 2)
    tab.wait(lambda: tab.script("return window.fetches") == 1, "a refresh")
    # 20 s is the limit for an answer.
    tab.wait(lambda: max(tab.script("return window.pauses")) > 20_000, "a long pause")


SLOW_CLOCK = """
let now = 0;
performance.now = () => (now += 3000);  // so an answer takes at least two of these steps
const theirs = window.setTimeout;
window.pauses = [];
window.setTimeout = (call, ms) => (window.pauses.push(ms), theirs(call, ms));
"""


def test_a_renewed_lease_counts_only_until_its_renewal_is_due(tab: Tab, viewer, hold) -> None:
    hold("invoice:42", timeout=3)
    tab.open(LIST)
    refresh_every(tab, 15)
    tab.script("window.ticks = 0; setInterval(() => window.ticks++, 1000)")
    tab.wait(lambda: tab.script("return window.ticks") >= 4, "four updates")

    [left] = tab.driver.find_elements(By.CSS_SELECTOR, "[data-left]")
    assert float(left.text.rstrip("s")) >= 1.9


def test_the_page_of_a_lock_and_the_dashboard_say_as_of_when_they_are(
    tab: Tab, viewer, hold
) -> None:
    hold("invoice:42")
    for path in (path_of("invoice:42"), f"{LIST}dashboard/"):
        tab.open(path)
        assert re.search(r"As of \d\d:\d\d:\d\d", tab.text), path


def test_refresh_keeps_search_filter_and_scroll(tab: Tab, viewer, hold) -> None:
    for number in range(40):
        hold(f"a:{number:02}")
    tab.open(f"{LIST}?q=a%3A&kind=mutex&o=-0")
    refresh_every(tab, 2)
    tab.script("window.scrollTo(0, 500)")

    hold("b")
    hold("a:99")
    tab.wait(lambda: lists(tab, "a:99"))

    assert not lists(tab, "b")
    assert tab.script("return window.scrollY") == 500


def test_refresh_keeps_the_boxes_and_the_focus(tab: Tab, releaser, hold) -> None:
    for name in ("first", "second", "third"):
        hold(name)
    tab.open(LIST)
    refresh_every(tab, 2)
    box(tab, "second").click()
    wait_for_refresh(tab, 2)

    assert box(tab, "second").is_selected()
    assert not box(tab, "first").is_selected()
    assert "1 of 3 selected" in tab.text
    active = tab.driver.switch_to.active_element
    assert active.accessible_name == BOX + "second"

    ask_to_release_selected(tab, "third")
    confirm(tab)
    assert [info.name for info in locks.active()] == ["first"]


def test_a_checked_lock_stays_the_one_that_was_seen(tab: Tab, releaser, hold) -> None:
    first, freed = hold("invoice:42"), hold("invoice:43")
    seen = first.fence_token
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
    assert tab.get("checkbox", "invoice:43").is_selected()

    ask_to_release_selected(tab, "other")

    tab.wait_for_text("“invoice:42” changed hands")
    tab.wait_for_text("“invoice:43” was released.")
    assert str(seen) in tab.text
    confirm(tab)
    assert second.owned()


def test_refresh_pauses_while_the_page_is_hidden(tab: Tab, viewer, hold) -> None:
    tab.open(LIST)
    refresh_every(tab, 2)
    wait_for_refresh(tab)
    tab.hide()
    tab.wait(lambda: tab.script("return document.hidden"), "the page to be hidden")
    before = tab.script("return window.refreshes")
    tab.driver.set_script_timeout(10)
    tab.driver.execute_async_script("setTimeout(arguments[0], 4500)")
    assert tab.script("return window.refreshes") - before <= 1  # one had begun before

    hold("invoice:42")
    tab.show()

    tab.wait(lambda: lists(tab, "invoice:42"))


def test_a_failed_refresh_is_reported_and_repeated(tab: Tab, viewer, hold) -> None:
    lock = hold("invoice:42")
    tab.open(LIST)
    tab.expect_complaint("ERR_INTERNET_DISCONNECTED")
    refresh_every(tab, 2)
    network = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    tab.cdp("Network.enable")
    tab.cdp("Network.emulateNetworkConditions", offline=True, **network)
    usual = tab.script(COLOUR)
    tab.wait(lambda: "could not be refreshed" in status(tab))
    assert tab.script(COLOUR) != usual
    assert lists(tab, "invoice:42")

    tab.cdp("Network.emulateNetworkConditions", offline=False, **network)
    lock.release()

    tab.wait(lambda: "refreshed again" in status(tab))
    assert tab.script(COLOUR) == usual
    assert not lists(tab, "invoice:42")

    tab.cdp("Network.deleteCookies", name="sessionid", url=tab.origin)
    tab.wait(lambda: "could not be refreshed" in status(tab))
    assert tab.path == LIST


def test_the_dashboard_refreshes_itself_and_stays_as_it_is(tab: Tab, viewer, hold) -> None:
    for name in ("invoice:42", "ledger"):
        hold(name)
    tab.open(f"{LIST}dashboard/?minutes=5")
    summary = tab.driver.find_element(By.CSS_SELECTOR, ".redislock-figures summary")
    summary.click()
    refresh_every(tab, 2)
    tab.script("document.querySelector('.redislock-figures summary').focus()")

    hold("report")
    tab.wait(lambda: ": 3 locks, " in tab.driver.switch_to.active_element.text, "three locks")

    assert len(tab.driver.find_elements(By.CSS_SELECTOR, ".redislock-figures[open]")) == 1
    assert tab.driver.switch_to.active_element.tag_name == "summary"
    assert not tab.script("return document.querySelector('#redislock-refresh').form.hidden")
    assert tab.path == f"{LIST}dashboard/?minutes=5"


def test_durations_count_between_two_refreshes(tab: Tab, viewer, hold, redis_server) -> None:
    hold("short", timeout=5, auto_renewal=False)
    hold("renewed", timeout=50)
    acquired_before(redis_server, "renewed", seconds=15)
    hold("invoice:42", timeout=60, auto_renewal=False)
    tab.open(LIST)
    refresh_every(tab, 15)
    [state] = tab.driver.find_elements(By.CLASS_NAME, "redislock-renewed")
    meter = tab.get("meter", "Left of a lease of 1m 00s")
    value = float(meter.get_property("value"))
    row = tab.driver.find_element(By.XPATH, "//tr[.//a[text()='invoice:42']]")

    tab.wait(lambda: float(meter.get_property("value")) < value - 2, "the meter to fall")

    left = row.find_element(By.CSS_SELECTOR, "[data-left]")
    age = row.find_element(By.CSS_SELECTOR, "[data-age]")
    assert float(left.text.rstrip("s")) < value - 1
    assert float(age.text.rstrip("s")) > 1
    assert re.fullmatch(r"renewed (?!0\.)[\d.]+s ago", state.text)
    tab.wait_for_text("0.0s of 5.0s")


def test_refresh_waits_while_text_is_selected(tab: Tab, viewer, hold) -> None:
    hold("invoice:42")
    tab.open(LIST)
    tab.script(SELECT_ROWS)
    tab.script(COUNT_FETCHES)
    refresh_every(tab, 2)
    hold("report")

    tab.wait(lambda: tab.script("return window.fetches") > 1, "two refreshes")
    assert tab.script("return window.refreshes") == 0
    assert "invoice:42" in tab.script("return getSelection().toString()")

    tab.script("getSelection().removeAllRanges()")
    tab.wait(lambda: lists(tab, "report"))


def test_durations_read_as_the_servers_do(tab: Tab, viewer, hold) -> None:
    seconds = [0, 4.24, 9.96, 10, 59.9, 60, 200, 3599, 3600, 86399, 86400, 190000]
    hold("x")
    tab.open(LIST)
    tab.script("performance.now = () => 0")
    refresh_every(tab, 2)
    wait_for_refresh(tab)
    tab.script("performance.now = () => 0.001")  # from now on no time passes
    shown = [tab.script(ADD_AGE, each) for each in seconds]

    tab.wait(lambda: [each.text for each in shown] == [short_duration(each) for each in seconds])


def test_boxes_are_checked_all_at_once_and_in_a_range(tab: Tab, releaser, hold) -> None:
    for name in ("first", "second", "third"):
        hold(name)
    tab.open(LIST)
    every = tab.get("checkbox", "Select all objects on this page for an action")
    boxes = tab.driver.find_elements(By.CSS_SELECTOR, "input.action-select")

    every.click()
    assert "3 of 3 selected" in tab.text
    boxes[1].click()
    assert "2 of 3 selected" in tab.text
    assert not every.is_selected()

    boxes[0].click()
    boxes[2].click()
    boxes[0].click()
    ActionChains(tab.driver).key_down(Keys.SHIFT).click(boxes[2]).key_up(Keys.SHIFT).perform()
    assert "3 of 3 selected" in tab.text


@pytest.mark.parametrize("language", ["en", "de", "zh-hans"])
def test_all_default_columns_fit_next_to_the_sidebar(
    tab: Tab, releaser, settings, hold, monkeypatch, language: str
) -> None:
    other = {**settings.CACHES["default"], "KEY_PREFIX": "other"}
    settings.CACHES = {**settings.CACHES, "sessions-eu-central": other}
    monkeypatch.setattr(acquisition, "payload_text", lambda *_, **__: json.dumps(TASK))
    for manager in (locks, locks.using("sessions-eu-central")):
        for name, timeout in (("payout", 60), ("invoice:42", 3000), ("x" * 100, 90_000)):
            hold(name, manager=manager, timeout=timeout)
    tab.log_in(language, name="django_language")
    tab.open(LIST)
    tab.script("localStorage.setItem('django.admin.navSidebarIsOpen', 'true')")
    for width in (1280, 1920):
        tab.resize(width, 900)
        tab.open(LIST)
        assert tab.script(HIDDEN_PIXELS) == 0
        assert not tab.scrolls_sideways()


def test_ten_locks_are_visible_below_one_line_of_tools(
    tab: Tab, releaser, hold, monkeypatch
) -> None:
    monkeypatch.setattr(acquisition, "payload_text", lambda *_, **__: json.dumps(TASK))
    for number in range(15):
        hold(f"invoice:{number}")
    tab.resize(1440, 900)
    tab.open(LIST)
    tab.script("localStorage.setItem('django.admin.navSidebarIsOpen', 'true')")
    tab.open(LIST)

    assert tab.script(VISIBLE_ROWS) >= 10
    middles = tab.script(TOPS, TOOLS)
    assert len(middles) == 4
    assert max(middles) - min(middles) < 10


@pytest.mark.parametrize("scripts", [True, False])
@pytest.mark.parametrize("width", [1440, 390])
def test_the_filter_is_folded_and_names_its_choice(
    tab: Tab, viewer, hold, width: int, scripts: bool
) -> None:
    if not scripts:
        tab.without_scripts()
    hold("invoice:42")
    tab.resize(width, 900)
    tab.open(LIST)
    assert not tab.all("link", "mutex")

    tab.get("main").find_element(By.CSS_SELECTOR, ".redislock-fold summary").click()
    assert not tab.scrolls_sideways()
    tab.follow(tab.get("link", "mutex"))

    assert lists(tab, "invoice:42")
    assert "Filter mutex" in tab.text
    tab.follow(tab.get("link", "Clear filter"))
    tab.follow(tab.get("link", "held (1)"))
    assert tab.path == f"{LIST}?state=held"
