"""The dashboard."""

import os
import re
from datetime import datetime, timedelta

import pytest

from django_redislock import LockLost, locks
from django_redislock.admin import dashboard
from django_redislock.lock_types import QueueLock
from tests.pages import (
    DASHBOARD,
    RELEASE,
    arrived_before,
    link_to,
    make_past,
    minutes_ago,
    postpone,
    rows_of,
    text_of,
    words_of,
)
from tests.tools import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("empty_history")]


def activities(response):
    """Return the cells of each lock by its name."""
    return {name: cells for name, *cells in rows_of(response, "activity")}


def section_of(response, name):
    """The markup of one section."""
    start = f'<section aria-labelledby="redislock-{name}">'
    return text_of(response).partition(start)[2].partition("</section>")[0]


class Ahead(datetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + timedelta(hours=2)


# At one look


def test_an_empty_dashboard_says_so(viewer):
    words = words_of(viewer.get(DASHBOARD))

    for text in ("Nothing was held, and nobody waited.", "No events are kept yet.", "acquired 0"):
        assert text in words


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


def test_a_queued_task_is_not_held_and_a_lock_is_held_for_at_most_the_whole_time(
    redis_server, viewer, monkeypatch
):
    monkeypatch.setattr(dashboard, "datetime", Ahead)  # the clock of the server counts
    queued = QueueLock(locks.lock("sync"), "queued-0123", ("shop.sync", "an-id"))
    assert queued.acquire(3600)
    nothing = viewer.get(DASHBOARD)
    held = [locks.semaphore("pool", 3, timeout=3600) for _ in range(3)]
    for each in held:
        assert each.acquire()
    postpone(redis_server, "pool", seconds=1000)

    response = viewer.get(DASHBOARD, {"minutes": 5})
    for each in (queued, *held):
        each.release()

    assert nothing.context["processes"] == []
    assert activities(response) == {
        "sync": ["-", "", "-", "-", "-", "-", "queued 1"],
        "pool": ["-", "", "-", "-", "3", "5m 00s", "held 3"],
    }


def test_the_locks_of_a_process_are_one_row_that_opens(redis_server, hold, releaser):
    for name in ("first", "second"):
        hold(name, timeout=90)
    postpone(redis_server, "second", seconds=60)
    process = f"{locks.get('first').holder.host}:{os.getpid()}"

    response = releaser.get(DASHBOARD)
    [row] = response.context["processes"]
    shown = releaser.get(link_to(response, "Show in the list, to release them"))
    asked = releaser.post(f"{RELEASE}?process={process}", {"all": "yes"})

    assert (row.process, row.stale, row.names) == (process, 1, ("first", "second"))
    assert section_of(response, "processes").count("<details") == 1
    assert {each.name for each in shown.context["cl"].result_list} == {"first", "second"}
    assert {each.info.name for each in asked.context["held"]} == {"first", "second"}
    assert "stale 1 " in words_of(response)
    assert "second" in text_of(releaser.get(link_to(response, "stale")))


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

    rows, section = rows_of(response, "troubles"), section_of(response, "troubles")
    assert [row[1:3] for row in rows] == [["lost"] * 2, ["forced"] * 2, ["expired"] * 2]
    assert [rows[0][-1], rows[2][-1]] == fences
    links = dict(re.findall(r'<th scope="row"><a href="(.*?)">(.*?)</a>', section))
    for link, name in links.items():
        assert viewer.get(link).context["title"] == name
    for at, _, _, process, held, _ in rows:
        assert re.search(r"\d\d:\d\d:\d\d$", at)
        assert held.endswith("s")
        assert process.endswith(f":{os.getpid()}")

    unrecorded = hold("x")
    redis_server.flushdb()
    with pytest.raises(LockLost):
        unrecorded.release()
    [row] = rows_of(viewer.get(DASHBOARD), "troubles")
    assert row[1:] == ["x", "lost", "?:?", "-", "-"]


# Activity


def test_window_can_be_chosen(hold, viewer, redis_server):
    hold("x").release()
    make_past(redis_server, "x", times=2, seconds=1, step=lambda n: minutes_ago(10 + 30 * n))

    for minutes, shown in ((5, 1), (15, 2), (60, 3), ("x", 2), (7, 2)):
        response = viewer.get(DASHBOARD, {"minutes": minutes})
        assert activities(response)["x"][-1] == f"released {shown}"


def test_the_most_contended_come_first(hold, wait, two_holds, viewer, redis_server, monkeypatch):
    hold("undisturbed").release()
    two_holds("short", longer=100)
    two_holds("long", longer=600)
    hold("refused")
    assert not locks.lock("refused").acquire(blocking=False)
    hold("waited for")
    for _ in range(2):
        wait("waited for")
    arrived_before(redis_server, "waited for", seconds=40)

    response = viewer.get(DASHBOARD)
    monkeypatch.setattr(dashboard, "MAX_LISTED", 2)
    fewer = viewer.get(DASHBOARD)

    found = activities(response)
    assert [*found] == ["waited for", "long", "short", "refused", "undisturbed"]
    waiting, _, longest, waits, *_ = found["waited for"]
    assert 40 <= int(longest.removesuffix("s")) < 60
    assert (waiting, waits, response.context["waiting"]) == ("2", "2", 2)
    assert found["refused"] == ["-", "", "-", "-", *found["refused"][4:-1], "held 1 refused 1"]
    assert [*activities(fewer)] == ["waited for", "long"]
    assert "3 more locks were less busy." in words_of(fewer)
    totals = {each.what: count for each, count in response.context["totals"]}
    assert (totals["acquired"], totals["refused"]) == (7, 1)


def test_locks_that_were_not_read_but_have_events_are_shown_as_they_are(hold, viewer, monkeypatch):
    monkeypatch.setattr(dashboard, "MAX_READ", 2)
    for number in range(5):
        hold(f"lock {number}").release()
        hold(f"lock {number}")

    response = viewer.get(DASHBOARD)

    assert response.context["total"] == 5
    assert all("held 1" in outcomes for *_, outcomes in activities(response).values())
