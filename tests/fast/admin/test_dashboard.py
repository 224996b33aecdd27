"""The dashboard."""

import os

import pytest

from django_redislock import LockLost, locks
from django_redislock.admin import dashboard
from tests.pages import (
    DASHBOARD,
    RELEASE,
    arrived_before,
    listed,
    make_past,
    minutes_ago,
    postpone,
    rows_of,
    words_of,
)
from tests.tools import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("empty_history")]


def activities(response):
    """Return the cells of each lock by its name."""
    return {name: cells for name, *cells in rows_of(response, "activity")}


# At one look


def test_without_history_the_present_is_shown(hold, viewer, settings):
    settings.REDISLOCK_HISTORY = 0
    hold("x")
    hold("cooling", at_least_for=20).release()

    response = viewer.get(DASHBOARD)
    locks.force_release("cooling")

    assert activities(response)["x"][-1] == "held 1"
    assert "cooling" in activities(response)
    assert "No history is kept (REDISLOCK_HISTORY is 0)" in words_of(response)
    assert "In the last hour" not in words_of(response)


def test_the_locks_of_a_process_are_one_row_that_opens(redis_server, hold, releaser):
    for name in ("first", "second"):
        hold(name, timeout=90)
    postpone(redis_server, "second", seconds=60)
    process = f"{locks.get('first').holder.host}:{os.getpid()}"

    response = releaser.get(DASHBOARD)
    [row] = response.context["processes"]
    asked = releaser.post(f"{RELEASE}?process={process}", {"all": "yes"})

    assert (row.process, row.stale, row.names) == (process, 1, ("first", "second"))
    assert {each.info.name for each in asked.context["held"]} == {"first", "second"}
    assert listed(releaser, state="stale") == ["second"]


# What went wrong


def test_problems_are_listed(hold, viewer, redis_server):
    hold("usual").release()
    expired = hold("expired", timeout=0.4, auto_renewal=False)
    wait_until(lambda: locks.history("expired"))
    hold("forced")
    assert locks.force_release("forced")
    lost = hold("lost", timeout=0.4, auto_renewal=False)
    wait_until(lambda: locks.history("lost"))
    fences = [str(lost.fence_token), str(expired.fence_token)]
    with pytest.raises(LockLost):
        lost.release()

    response = viewer.get(DASHBOARD)

    rows = rows_of(response, "troubles")
    assert [row[1:3] for row in rows] == [["lost"] * 2, ["forced"] * 2, ["expired"] * 2]
    assert [rows[0][-1], rows[2][-1]] == fences


def test_the_most_contended_come_first(hold, wait, viewer, redis_server, monkeypatch):
    hold("undisturbed").release()
    make_past(redis_server, "undisturbed", times=1, seconds=1, step=lambda _: minutes_ago(20))
    hold("refused")
    assert not locks.lock("refused").acquire(blocking=False)
    hold("waited for")
    for _ in range(2):
        wait("waited for")
    arrived_before(redis_server, "waited for", seconds=40)

    response = viewer.get(DASHBOARD)
    monkeypatch.setattr(dashboard, "MAX_LISTED", 2)
    fewer = viewer.get(DASHBOARD, {"minutes": "60"})

    found = activities(response)
    assert [*found] == ["waited for", "refused", "undisturbed"]
    waiting, _, longest, waits, *_ = found["waited for"]
    assert 40 <= int(longest.removesuffix("s")) < 60
    assert (waiting, waits, response.context["waiting"]) == ("2", "2", 2)
    assert found["undisturbed"][-1] == "released 1"
    assert [*activities(fewer)] == ["waited for", "refused"]
    assert "1 more lock was less busy." in words_of(fewer)
    totals = {each.what: count for each, count in response.context["totals"]}
    assert (totals["acquired"], totals["refused"]) == (3, 1)
