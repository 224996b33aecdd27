"""With `USE_TZ = False`, Django's times have no time zone. The times of the package have one."""

import pytest

from tests.commands import run
from tests.pages import DASHBOARD, LIST, user_with

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True, params=["held", "released"])
def naive(request, settings, redis_server, hold):
    settings.USE_TZ = False
    redis_server.flushdb()
    lock = hold("x")
    if request.param == "released":
        lock.release()


def test_every_page():
    viewer = user_with("view_activelock", "release_activelock")

    for page in (LIST, DASHBOARD, f"{LIST}x/history/", f"{LIST}x/change/"):
        assert viewer.get(page).status_code == 200, page


@pytest.mark.parametrize(
    "arguments", [["list"], ["show", "x"], ["history", "--since=1h"], ["check"]]
)
def test_every_subcommand(arguments):
    assert run(*arguments).returncode == 0
