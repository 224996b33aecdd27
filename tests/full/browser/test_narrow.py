"""What is wide or long has room on a small screen."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
from django.contrib.auth.models import User
from selenium.webdriver.common.by import By

from django_redislock import locks

from .browser import HEIGHT, Tab
from .pages import LIST, SURE, ask_to_release, path_of

DASHBOARD = f"{LIST}dashboard/?minutes=60"

TIMES = """
return [...document.querySelectorAll('.redislock-timeline .redislock-chart > text')]
    .map((text) => text.getBoundingClientRect())
    .filter((box) => box.width)
    .map((box) => [box.left, box.right]);
"""


@pytest.fixture(autouse=True)
def sidebar(tab: Tab, releaser: User) -> None:
    """It is open, and leaves the page 900 of 1280 pixels."""
    tab.open(LIST)
    tab.script("localStorage.setItem('django.admin.navSidebarIsOpen', 'true')")


@pytest.fixture
def pool(nothing_left_behind) -> Iterator[str]:
    held = [locks.semaphore("pool", 30, timeout=60) for _ in range(30)]
    assert all(each.acquire(blocking=False) for each in held)
    yield "pool"
    for each in held:
        each.release()


def test_a_release_of_many_is_confirmed_without_scrolling(tab: Tab, pool: str) -> None:
    tab.open(path_of(pool))
    ask_to_release(tab)

    assert len(tab.driver.find_elements(By.CSS_SELECTOR, ".redislock-locks tbody tr")) == 30
    button = tab.get("button", SURE)
    assert button.location["y"] + button.size["height"] < HEIGHT


def test_many_holders_stand_in_two_columns(tab: Tab, pool: str) -> None:
    tab.open(path_of(pool))

    cards = tab.driver.find_elements(By.CLASS_NAME, "redislock-card")
    assert len({card.location["x"] for card in cards}) == 2


def test_times_of_a_chart_do_not_run_into_each_other(tab: Tab, hold) -> None:
    hold("invoice:42")
    shown = {}
    for width in (1280, 768, 390):
        tab.resize(width, HEIGHT)
        tab.open(DASHBOARD)
        times = tab.script(TIMES)
        shown[width] = len(times)
        assert all(left > right for (_, right), (left, _) in pairwise(times))
    assert min(shown[768], shown[390]) > 2
    assert shown[1280] >= 6


LAST_TIME = """
const texts = [...document.querySelectorAll('.redislock-timeline .redislock-chart > text')];
const last = texts.filter((text) => text.getBoundingClientRect().width).pop();
last.setAttribute('x', '96%');  // as far to the right as a time is centered
last.setAttribute('text-anchor', 'middle');
last.textContent = '00:00:00';
return [
    last.getBoundingClientRect().right,
    document.documentElement.clientWidth,
];
"""


def test_the_last_time_of_a_chart_does_not_run_out_of_the_page(tab: Tab, hold) -> None:
    hold("invoice:42").release()
    hold("invoice:42")
    for width in (1280, 768, 390):
        tab.resize(width, HEIGHT)
        for address in (DASHBOARD, path_of("invoice:42")):
            tab.open(address)
            right, edge = tab.script(LAST_TIME)
            assert right <= edge, (width, address)
