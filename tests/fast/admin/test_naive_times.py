"""Where the site has `USE_TZ = False`, Django's own times have no zone, and ours have one."""

import os

import pytest

from tests.commands import Lines, run
from tests.pages import DASHBOARD, LIST, user_with
from tests.tools import ROOT

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def naive(settings, redis_server):
    settings.USE_TZ = False
    redis_server.flushdb()


@pytest.mark.parametrize("held", ["nothing", "free", "held"])
def test_every_page_is_drawn(hold, held):
    viewer = user_with("view_activelock", "release_activelock")
    if held != "nothing":
        lock = hold("x")
        if held == "free":
            lock.release()

    pages = [viewer.get(LIST), viewer.get(DASHBOARD), viewer.get(f"{LIST}x/history/")]
    if held != "nothing":
        pages.append(viewer.get(f"{LIST}x/change/"))

    assert {page.status_code for page in pages} == {200}


@pytest.mark.parametrize("arguments", [["list"], ["show", "x"], ["history"], ["check"]])
@pytest.mark.parametrize("held", [True, False])
def test_every_subcommand_tells(hold, arguments, held):
    lock = hold("x")
    if not held:
        lock.release()

    assert run(*arguments).returncode == 0


def test_watching_tells_what_is_known_by_our_own_clock(tmp_path):
    tmp_path.joinpath("naive_times.py").write_text(
        "from tests.settings import *\nUSE_TZ = False\n"
    )
    away = {
        "DJANGO_SETTINGS_MODULE": "naive_times",
        "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT))),
        "REDIS_URL": "redis://127.0.0.1:1/0",
    }

    with Lines(**away) as lines:
        lines.expect("away +Redis ")
        assert lines.end() == (0, "")
