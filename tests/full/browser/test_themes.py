"""The pages work under the themes of the admin that many sites use."""

import json
from collections.abc import Iterator

import pytest
from django.contrib.auth.models import User
from selenium import webdriver
from selenium.webdriver.support.ui import Select

from django_redislock import locks
from django_redislock.lock_types import acquisition
from tests.pages import user_with
from tests.tools import Child

from .browser import Tab
from .pages import LIST, SURE, path_of

THEMES = ("unfold", "jazzmin", "grappelli")

TASK = {"host": "worker", "pid": 1860, "task_name": "shop.tasks.sync", "task_id": "0b9d1c5e"}

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
        hold("invoice:42")
    for path, heading in (
        (LIST, "invoice:42"),
        (f"{LIST}dashboard/", "Activity, last 15 minutes"),
        (path_of("invoice:42").replace("change", "history"), "invoice:42"),
    ):
        themed.open(path)
        is_fine(themed, heading)

    hold("report")
    themed.open(LIST)
    Select(themed.get("combobox", "Auto-refresh:")).select_by_value("2")
    hold("later")
    themed.wait_for_text("later")

    themed.resize(390, 900)
    themed.open(path_of("invoice:42"))
    is_fine(themed, "Not known whether releasing is safe.")
    assert not themed.scrolls_sideways()
    click(themed, "button", "Revoke task…")
    is_fine(themed, "Revoke this task?")
    click(themed, "button", "Cancel")
    click(themed, "button", "Release…")
    click(themed, "button", SURE)

    is_fine(themed, "Released “invoice:42”.")
    assert locks.get("invoice:42") is None
    assert locks.get("report")
