"""The pages work under the themes of the admin that many sites use."""

import json
from collections.abc import Iterator

import pytest
from django.contrib.auth.models import User
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select

from django_redislock import locks
from django_redislock.lock_types import acquisition
from tests.pages import user_with
from tests.tools import Child

from .browser import Tab
from .pages import LIST, SURE, path_of
from .test_list import TASK

THEMES = ("unfold", "jazzmin", "grappelli")

SERVE = """
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.wsgi import get_wsgi_application

class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass

application = StaticFilesHandler(get_wsgi_application())
server = make_server("127.0.0.1", 0, application, server_class=Server, handler_class=Quiet)
say(f"serves {server.server_port}")
server.serve_forever()
"""

WIDE = """
const width = document.documentElement.clientWidth;
return [...document.querySelectorAll('body *')]
    .filter((each) => each.getBoundingClientRect().right > width + 1)
    .filter((each) => !each.closest('table'))
    .map((each) => `${each.tagName} ${each.id} ${each.className} ${each.textContent}`);
"""
"""Lists the elements that reach beyond the window, apart from tables, which can be scrolled."""

STATUS = "return performance.getEntriesByType('navigation')[0].responseStatus"


@pytest.fixture(params=THEMES)
def themed(
    request: pytest.FixtureRequest, chromium: webdriver.Chrome, transactional_db: None
) -> Iterator[Tab]:
    """A tab of an operator on a site with the theme, which another process serves: a theme changes
    the admin site of its process."""
    pytest.importorskip(request.param)
    settings = "tests.full.browser.theme_settings"
    user = user_with("view_activelock", "release_activelock")
    User.objects.update(first_name="ada")  # a long name widens the header of Grappelli
    with (
        Child(SERVE, DJANGO_SETTINGS_MODULE=settings, TESTS_THEME=request.param) as server,
        Tab(chromium, f"http://127.0.0.1:{server.expect('serves')}") as tab,
    ):
        tab.log_in(user.cookies["sessionid"].value)
        yield tab


def is_fine(tab: Tab, heading: str) -> None:
    """The page has the status 200 and its heading, and complains about nothing."""
    assert tab.script(STATUS) == 200, tab.text
    assert heading.casefold() in tab.text.casefold()  # unfold writes names with a capital
    assert tab.complaints() == [], tab.path


def click(tab: Tab, role: str, *names: str) -> None:
    element = tab.get(role, *names)
    tab.script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
    tab.follow(element)


def test_an_operator_looks_at_locks_and_releases_one(themed: Tab, hold, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(acquisition, "payload_text", lambda *_, **__: json.dumps(TASK))
        held = hold("invoice:42")
    hold("report")
    for path, heading in (
        (LIST, "report"),
        (f"{LIST}?q=none", "No active lock matches."),
        (f"{LIST}dashboard/", "Activity, last 15 minutes"),
        (path_of("invoice:42").replace("change", "history"), "invoice:42"),
    ):
        themed.open(path)
        is_fine(themed, heading)
        assert "No results" not in themed.text  # Unfold would say it, too

    themed.open(path_of("invoice:42"))
    is_fine(themed, "Not known whether releasing is safe.")
    headings = themed.driver.find_elements(By.CSS_SELECTOR, "h1, h3")
    assert any("invoice:42" in each.text.casefold() for each in headings)
    assert len(themed.all("link", "Admin log")) == 1
    click(themed, "button", "Revoke task…")
    is_fine(themed, "Revoke this task?")
    click(themed, "button", "Cancel")
    click(themed, "button", "Release…")
    is_fine(themed, "Force-release this lock?")
    click(themed, "button", "Cancel")
    themed.open(path_of("invoice:42"))
    click(themed, "button", "Release…")
    click(themed, "button", SURE)

    is_fine(themed, "Released “invoice:42”.")
    assert locks.get("invoice:42") is None
    assert not held.owned()
    assert locks.get("report")


def test_the_list_is_refreshed(themed: Tab, hold) -> None:
    def is_shown(count: int, *names: str) -> bool:
        rows = themed.driver.find_elements(By.CSS_SELECTOR, "#result_list tbody tr")
        shown = "\n".join(row.text for row in rows)
        totals = (f"{count} active lock", f"{count} total")
        return (
            len(rows) == count
            and all(name in shown for name in names)
            and any(each in themed.text for each in totals)
        )

    hold("invoice:42")
    themed.open(LIST)
    Select(themed.get("combobox", "Auto-refresh:")).select_by_value("2")
    assert is_shown(1, "invoice:42")

    report = hold("report")
    themed.wait(lambda: is_shown(2, "invoice:42", "report"), "both locks")
    report.release()
    themed.wait(lambda: is_shown(1, "invoice:42"), "one lock")
    assert themed.complaints() == []


def test_no_page_is_wider_than_a_narrow_screen(themed: Tab, hold, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(acquisition, "payload_text", lambda *_, **__: json.dumps(TASK))
        hold("invoice:42")
    themed.resize(390, 900)
    for path in (LIST, f"{LIST}dashboard/", path_of("invoice:42")):
        themed.open(path)
        assert not themed.scrolls_sideways(), (path, themed.script(WIDE))
    for name in ("Release…", "Revoke task…"):
        themed.open(path_of("invoice:42"))
        click(themed, "button", name)
        assert not themed.scrolls_sideways(), name


def test_a_name_is_shown_as_it_is(themed: Tab, hold) -> None:
    hold("lower case")
    themed.open(path_of("lower case"))
    headings = themed.driver.find_elements(By.CSS_SELECTOR, "h1, h2, h3, h4")
    assert "lower case" in [each.text for each in headings]
