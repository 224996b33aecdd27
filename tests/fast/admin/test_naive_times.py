"""With `USE_TZ = False`, Django's times have no time zone. The times of the package have one."""

import re

import pytest

from tests.commands import run, watch
from tests.pages import DASHBOARD, LIST, user_with

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def naive(settings, redis_server):
    settings.USE_TZ = False
    redis_server.flushdb()


@pytest.mark.parametrize("held", [True, False])
def test_every_page(hold, held):
    viewer = user_with("view_activelock", "release_activelock")
    lock = hold("x")
    if not held:
        lock.release()

    for page in (LIST, DASHBOARD, f"{LIST}x/history/", f"{LIST}x/change/"):
        assert viewer.get(page).status_code == 200, page


@pytest.mark.parametrize(
    "arguments", [["list"], ["show", "x"], ["history", "--since=1h"], ["check"]]
)
@pytest.mark.parametrize("held", [True, False])
def test_every_subcommand(hold, arguments, held):
    lock = hold("x")
    if not held:
        lock.release()

    assert run(*arguments).returncode == 0


def test_watch_shows_when_it_read_the_locks():
    moment, _ = watch()

    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S+", moment)
