"""A list that is left open says nothing false: while it is refreshed, while it is not, and while
the server does not respond.

``LIST_SECONDS=300`` leaves each list open for so long, and reads it every ten seconds.
"""

import math
import os
import re
import signal
from collections.abc import Iterator
from threading import Event

import pytest
from selenium.webdriver.common.by import By

from django_redislock import LockManager, locks
from django_redislock.lock_state import state_of
from django_redislock.testing import EmbeddedServer
from tests.lock_fixtures import own_server  # noqa: F401  a fixture
from tests.lock_tools import start, waiting
from tests.tools import wait_until

from .browser import Tab
from .pages import LIST
from .test_list import refresh_every, status

SECONDS = float(os.environ.get("LIST_SECONDS", "0"))

PAUSE_SECONDS = 10.0
"""Between two readings of a list that stays open for long."""

LEASE_SECONDS = 30.0

ROWS = """
const text = (row, selector) => row.querySelector(selector)?.textContent.trim() ?? '';
return [...document.querySelectorAll('#result_list tbody tr')].map((row) => [
    text(row, '.field-name'),
    text(row, '.redislock-state').split(/\\s+/).slice(1).join(' '),
    Number(text(row, '.field-waiters').split(' ')[0]),
    text(row, '[data-left]'),
    text(row, '.redislock-renewed [data-age]'),
]);
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
"""

COUNT_TICKS = """
window.ticks = 0;
setInterval(() => window.ticks++, 1000);
"""


Facts = dict[str, tuple[str, int]]
"""The state and the number of waiters of each lock."""


class Story:
    """Locks that come and go while the list is open."""

    def __init__(self, hold) -> None:
        self._hold = hold
        self._held = {}
        self._waits = []
        self._number = 0

    def go_on(self) -> None:
        """Let one thing happen: a lock is acquired, waited for, handed over, or released."""
        acts = (self.acquire, self.queue, self.hand_over, self.release)
        acts[self._number % len(acts)]()
        self._number += 1

    def acquire(self) -> None:
        self._held["report"] = self._hold("report", timeout=LEASE_SECONDS)

    def queue(self) -> None:
        lock = locks.lock("invoice:42", timeout=LEASE_SECONDS, blocking_timeout=600)
        self._waits.append(start(use, lock))
        waiting(locks, "invoice:42", 1)

    def hand_over(self) -> None:
        self._held.pop("report").release()

    def release(self) -> None:
        locks.force_release("invoice:42")
        self._waits.pop().result(60)
        self._hold("invoice:42", timeout=LEASE_SECONDS)

    def end(self) -> None:
        while self._number % 4:
            self.go_on()


def use(lock) -> None:
    with lock:
        pass


@pytest.fixture
def story(settings, own_server: EmbeddedServer, hold) -> Iterator[Story]:  # noqa: F811
    entry = {**settings.CACHES["default"], "LOCATION": own_server.url}
    settings.CACHES = {"default": entry}  # with others that respond, the page would be a page
    hold("invoice:42", timeout=LEASE_SECONDS)
    hold("once", timeout=3600, auto_renewal=False)
    story = Story(hold)
    yield story
    story.end()


def truth(manager: LockManager) -> Facts:
    return {info.name: (str(state_of(info).label), info.waiters) for info in manager.active()}


def shown(tab: Tab) -> Facts:
    return {name: (state, waiters) for name, state, waiters, _, _ in tab.script(ROWS)}


def as_of(tab: Tab) -> str:
    text = tab.driver.find_element(By.ID, "redislock-time").text
    return re.fullmatch(r"As of (\d\d:\d\d:\d\d)", text)[1]


def false_figures(tab: Tab) -> list[str]:
    """Return the rows that say that a healthy lease was not renewed in time."""
    most = LEASE_SECONDS / 3 + 1.5  # with more, the state is "late"
    least = math.floor(LEASE_SECONDS - most)
    found = []
    for name, state, _, left, renewed in tab.script(ROWS):
        if state == "held" and (seconds(left) < least or seconds(renewed or "0s") > most):
            found.append(f"{name}: {left} left, renewed {renewed} ago")
    return found


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def two_minutes_later(tab: Tab) -> list[str]:
    """Let two minutes pass in the page, and return its figures after it has updated them."""
    tab.script(PASS_TWO_MINUTES)
    tab.script(COUNT_TICKS)
    tab.wait(lambda: tab.script("return window.ticks") >= 2, "two updates")
    return tab.script(FIGURES)


def refreshed(tab: Tab, times: int = 1) -> None:
    """Wait for further refreshes. On a busy machine the page makes longer pauses."""
    wanted = tab.script("return window.refreshes") + times
    wait_until(lambda: tab.script("return window.refreshes") >= wanted)


def readings(tab: Tab, *, is_refreshed: bool) -> Iterator[None]:
    """Yield when the list is to be read: a few times, or for `SECONDS`."""
    for _ in range(round(SECONDS / PAUSE_SECONDS) or 5):
        yield
        if SECONDS:
            Event().wait(PAUSE_SECONDS)
        elif is_refreshed:
            refreshed(tab, 2)  # the first may have begun before the last act


def test_a_refreshed_list_shows_what_is_true(tab: Tab, viewer, story: Story) -> None:
    tab.open(LIST)
    refresh_every(tab, 2)
    before = truth(locks)
    for _ in readings(tab, is_refreshed=True):
        now = truth(locks)
        # In a long run, the last act is long past.
        assert shown(tab) in ([now] if SECONDS else [now, before])
        assert false_figures(tab) == []
        before = now
        story.go_on()
    wait_until(lambda: shown(tab) == truth(locks))


def test_a_list_that_is_not_refreshed_shows_what_was_true(tab: Tab, viewer, story: Story) -> None:
    tab.open(LIST)
    refresh_every(tab, 0)
    tab.open(LIST)
    then, time, figures = truth(locks), as_of(tab), tab.script(FIGURES)
    tab.script(ROUND_OTHERWISE)
    for _ in readings(tab, is_refreshed=False):
        assert (shown(tab), as_of(tab)) == (then, time)
        assert tab.script(FIGURES) == figures
        assert false_figures(tab) == []
        story.go_on()
    assert two_minutes_later(tab) == figures
    assert truth(locks) != then


def test_while_the_server_does_not_respond_the_list_shows_what_was_true(
    tab: Tab,
    viewer,
    story: Story,
    own_server: EmbeddedServer,  # noqa: F811
) -> None:
    tab.open(LIST)
    refresh_every(tab, 2)
    refreshed(tab)
    then = truth(locks)
    tab.expect_complaint("503 (Service Unavailable)")
    os.kill(own_server.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: "could not be refreshed" in status(tab))
        time = as_of(tab)
        for _ in readings(tab, is_refreshed=False):
            assert "could not be refreshed" in status(tab)
            assert (shown(tab), as_of(tab)) == (then, time)
            assert false_figures(tab) == []
        figures = two_minutes_later(tab)
        assert (shown(tab), as_of(tab)) == (then, time)
        assert false_figures(tab) == []
    finally:
        os.kill(own_server.pid, signal.SIGCONT)
    wait_until(lambda: "refreshed again" in status(tab))
    wait_until(lambda: shown(tab) == truth(locks))
    assert as_of(tab) != time
    assert tab.script(FIGURES) != figures
