"""Wide tables and long texts fit on a small screen."""

from itertools import pairwise

import pytest
from selenium.webdriver.common.by import By

from django_redislock import locks
from tests.pages import make_past, minutes_ago

from .browser import HEIGHT, Tab
from .pages import LIST, SURE, ask_to_release, confirm, path_of

TIMES = """
return [...document.querySelectorAll('.redislock-timeline .redislock-chart > text')]
    .map((text) => text.getBoundingClientRect())
    .filter((box) => box.width)
    .map((box) => [box.left, box.right]);
"""


@pytest.fixture(autouse=True)
def sidebar(tab: Tab, releaser) -> None:
    """Open the sidebar, which leaves 900 of 1280 pixels for the page."""
    tab.open(LIST)
    tab.script("localStorage.setItem('django.admin.navSidebarIsOpen', 'true')")


def test_thirty_holders_fit_without_scrolling(tab: Tab, nothing_left_behind) -> None:
    held = [locks.semaphore("pool", 30, timeout=60) for _ in range(30)]
    assert all(each.acquire(blocking=False) for each in held)
    tab.open(path_of("pool"))
    cards = tab.driver.find_elements(By.CLASS_NAME, "redislock-card")
    assert len({card.location["x"] for card in cards}) == 2

    ask_to_release(tab)
    assert len(tab.driver.find_elements(By.CSS_SELECTOR, ".redislock-locks tbody tr")) == 30
    button = tab.get("button", f"{SURE}s")
    assert button.location["y"] + button.size["height"] < HEIGHT
    confirm(tab)
    assert locks.get("pool") is None


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


def test_the_times_of_a_chart_neither_overlap_nor_leave_the_page(
    tab: Tab, hold, redis_server
) -> None:
    hold("invoice:42").release()
    make_past(redis_server, "invoice:42", times=1, seconds=600, step=lambda n: minutes_ago(59))
    hold("invoice:42")
    for width in (1280, 768, 390):
        tab.resize(width, HEIGHT)
        tab.open(path_of("invoice:42"))
        times = tab.script(TIMES)
        assert len(times) >= 3, width
        assert all(left > right for (_, right), (left, _) in pairwise(times)), width
        right, edge = tab.script(LAST_TIME)
        assert right <= edge, width
