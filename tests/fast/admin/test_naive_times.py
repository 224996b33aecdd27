"""With `USE_TZ = False`, Django's times have no time zone. The times of the package have one."""

import pytest

from tests.commands import run
from tests.pages import DASHBOARD, LIST, user_with

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("is_held", [True, False])
def test_every_page_and_every_subcommand(settings, empty_history, hold, is_held):
    settings.USE_TZ = False
    lock = hold("x")
    if not is_held:
        lock.release()
    viewer = user_with("view_activelock", "release_activelock")

    for page in (LIST, DASHBOARD, f"{LIST}x/history/", f"{LIST}x/change/"):
        assert viewer.get(page).status_code == 200, page
    for line in ("list", "show x", "history --since=1h", "check"):
        assert run(*line.split()).returncode == 0, line
