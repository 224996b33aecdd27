"""The dashboard."""

import html
import os
import re
from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from django_redislock import LockLost, locks
from django_redislock.admin import dashboard
from django_redislock.lock_types import QueueLock
from tests.pages import (
    DASHBOARD,
    LIST,
    RELEASE,
    arrived_before,
    link_to,
    make_past,
    minutes_ago,
    postpone,
    round_trips,
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


# At one look


def test_an_empty_dashboard_says_so(viewer):
    words = words_of(viewer.get(DASHBOARD))

    for text in ("Nothing was held, and nobody waited.", "No events are kept yet.", "acquired 0"):
        assert text in words


def test_stale_locks_are_counted(redis_server, hold, viewer):
    hold("stopped", timeout=90)
    postpone(redis_server, "stopped", seconds=60)

    response = viewer.get(DASHBOARD)

    assert "stale 1 " in words_of(response)
    assert "stopped" in text_of(viewer.get(link_to(response, "stale")))
    assert activities(response)["stopped"][-1] == "stale 1"


def test_a_queued_task_is_not_held(viewer):
    queued = QueueLock(locks.lock("sync"), "queued-0123", ("shop.sync", "an-id"))
    assert queued.acquire(3600)

    response = viewer.get(DASHBOARD)
    queued.release()

    assert activities(response) == {"sync": ["-", "", "-", "-", "-", "-", "queued 1"]}


def test_a_lock_is_held_for_at_most_the_whole_time(redis_server, viewer):
    held = [locks.semaphore("pool", 3, timeout=3600) for _ in range(3)]
    for each in held:
        assert each.acquire()
    postpone(redis_server, "pool", seconds=1000)

    response = viewer.get(DASHBOARD, {"minutes": 5})
    for each in held:
        each.release()

    assert activities(response) == {"pool": ["-", "", "-", "-", "3", "5m 00s", "held 3"]}


# What went wrong


def expire(hold, name, **options):
    lock = hold(name, timeout=0.4, auto_renewal=False, **options)
    wait_until(lambda: [each.outcome for each in locks.history(name)] == ["expired"])
    return lock


def force(hold, name, **options):
    lock = hold(name, **options)
    assert locks.force_release(name)
    return lock


def went_wrong_again(server, name, ago):
    """Repeat the last holding that went wrong as another that ended so many seconds ago."""
    [stream] = server.scan_iter("*history:broken")
    [(_, fields), *_] = server.xrevrange(stream)
    assert fields["name"] == name
    at = int((timezone.now().timestamp() - ago) * 1000)
    server.xadd(stream, fields | {"at": at, "token": f"past{ago}"})


def test_problems_are_listed(hold, viewer):
    hold("usual").release()
    hold("refused")
    assert not locks.lock("refused").acquire(blocking=False)
    expired, forced, lost = expire(hold, "expired"), force(hold, "forced"), expire(hold, "lost")
    fences = [str(each.fence_token) for each in (lost, forced, expired)]
    with pytest.raises(LockLost):
        lost.release()

    response = viewer.get(DASHBOARD)

    rows, section = rows_of(response, "troubles"), section_of(response, "troubles")
    links = dict(re.findall(r'<th scope="row"><a href="(.*?)">(.*?)</a>', section))
    for told in (
        [name for _, name, *_ in rows],
        [outcome for _, _, outcome, *_ in rows],
        re.findall(r'<use href="#redislock-(\w+)"', section),
        [viewer.get(link).context["title"] for link in links],
        list(links.values()),
    ):
        assert told == ["lost", "forced", "expired"]
    assert [fence for *_, fence in rows] == fences
    for at, _, _, process, held, _ in rows:
        assert re.search(r"\d\d:\d\d:\d\d$", at)
        assert held.endswith("s")
        assert process.endswith(f":{os.getpid()}")


def test_only_the_latest_problems_are_listed(hold, viewer):
    for number in range(11):
        force(hold, f"lock {number}")

    response = viewer.get(DASHBOARD)
    force(hold, "lock 11")
    later = viewer.get(DASHBOARD)

    latest = [f"lock {number}" for number in range(10, 0, -1)]
    assert [row[1] for row in rows_of(response, "troubles")] == latest
    assert "1 more of the last hour is not listed." in words_of(response)
    assert [row[1] for row in rows_of(later, "troubles")] == ["lock 11", *latest[:-1]]
    assert "2 more of the last hour are not listed." in words_of(later)


def test_a_loss_without_a_recorded_hold_is_listed(hold, viewer, redis_server):
    lock = hold("x")
    redis_server.flushdb()
    with pytest.raises(LockLost):
        lock.release()

    response = viewer.get(DASHBOARD)

    [row] = rows_of(response, "troubles")
    assert row[1:] == ["x", "lost", "?:?", "-", "-"]


# Activity


@pytest.mark.parametrize(("minutes", "shown"), [(5, 1), (15, 2), (60, 3), ("x", 2), (7, 2)])
def test_window_can_be_chosen(hold, viewer, redis_server, minutes, shown):
    hold("x").release()
    make_past(redis_server, "x", times=2, seconds=1, step=lambda n: minutes_ago(10 + 30 * n))

    response = viewer.get(DASHBOARD, {"minutes": minutes})

    assert activities(response)["x"][-1] == f"released {shown}"
    assert text_of(response).count('aria-current="true"') >= 1


def test_the_most_contended_come_first(hold, wait, two_holds, viewer, monkeypatch):
    hold("undisturbed").release()
    two_holds("short", longer=100)
    two_holds("long", longer=600)
    hold("refused")
    assert not locks.lock("refused").acquire(blocking=False)
    hold("waited for")
    wait("waited for")

    response = viewer.get(DASHBOARD)
    monkeypatch.setattr(dashboard, "MAX_LISTED", 2)
    fewer = viewer.get(DASHBOARD)

    found, section = activities(response), section_of(response, "activity")
    bars = [int(each) for each in re.findall(r'class="waiting" width="(\d+)%"', section)]
    assert [*found] == ["waited for", "long", "short", "refused", "undisturbed"]
    assert found["waited for"][0] == str(response.context["waiting"]) == "1"
    assert 0 < bars[2] < bars[1] == 100
    assert bars[3:] == [0, 0]
    assert found["refused"][:4] == ["-", "", "-", "-"]
    assert found["refused"][-1] == "held 1 refused 1"
    assert [*activities(fewer)] == ["waited for", "long"]
    assert "3 more locks were less busy." in words_of(fewer)


def test_waits_that_are_not_over_count(redis_server, hold, wait, viewer):
    for name in ("shorter", "longer"):
        hold(name)
        wait(name)
    wait("longer")
    arrived_before(redis_server, "longer", seconds=40)

    found = activities(viewer.get(DASHBOARD))

    assert [*found] == ["longer", "shorter"]
    waiting, _, longest, waits, *_ = found["longer"]
    assert 40 <= int(longest.removesuffix("s")) < 60
    assert (waiting, waits) == ("2", "2")


def test_the_clock_of_the_server_counts(hold, viewer, monkeypatch):
    class Ahead(datetime):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) + timedelta(hours=2)

    monkeypatch.setattr(dashboard, "datetime", Ahead)
    hold("x").release()

    assert [*activities(viewer.get(DASHBOARD))] == ["x"]


def test_the_events_of_the_last_hour_are_counted(hold, viewer):
    for _ in range(3):
        hold("x").release()
    hold("x")
    assert not locks.lock("x").acquire(blocking=False)

    totals = {each.what: count for each, count in viewer.get(DASHBOARD).context["totals"]}

    assert {what: count for what, count in totals.items() if count} == {
        "acquired": 4,
        "refused": 1,
    }


# How far back


def test_dropped_events_are_mentioned(hold, viewer, settings, redis_server):
    settings.REDISLOCK_HISTORY = 100
    hold("x").release()
    make_past(redis_server, "x", times=100, seconds=1, step=lambda n: minutes_ago(5) - n)
    [stream] = redis_server.scan_iter("*history:ended")
    [(first, _)] = redis_server.xrange(stream, count=1)
    redis_server.xdel(stream, first)  # it happened after those that follow it
    force(hold, "x")
    went_wrong_again(redis_server, "x", minutes_ago(14))

    assert "Older events may be missing" in words_of(viewer.get(DASHBOARD))


def test_without_history_the_present_is_shown(hold, viewer, settings):
    settings.REDISLOCK_HISTORY = 0
    hold("x")

    response = viewer.get(DASHBOARD)

    assert activities(response)["x"][-1] == "held 1"
    assert "No history is kept (REDISLOCK_HISTORY is 0)" in words_of(response)
    assert "In the last hour" not in words_of(response)


# Several caches


def test_the_dashboard_shows_one_alias(hold, viewer, other):
    hold("mine")
    hold("theirs", other)

    here, there = viewer.get(DASHBOARD), viewer.get(DASHBOARD, {"using": "other"})

    assert [*activities(here)] == ["mine"]
    assert [*activities(there)] == ["theirs"]
    assert link_to(here, "default") == "?using=default"
    assert link_to(here, "other") == "?using=other"
    assert f'href="{LIST}theirs/change/?using=other"' in text_of(there)
    assert "?using=other&amp;minutes=60" in text_of(there)


def test_links_to_the_list_keep_the_alias(viewer, other):
    assert "?using=" in text_of(viewer.get(DASHBOARD))
    assert link_to(viewer.get(DASHBOARD, {"using": "other"}), "All locks") == f"{LIST}?using=other"


@pytest.mark.filterwarnings("default")
def test_unreachable_alias(viewer, unusable):
    response = viewer.get(DASHBOARD, {"using": "away", "minutes": 5})

    assert response.status_code == 503
    assert "The locks of “away” cannot be read: " in html.unescape(text_of(response))
    assert viewer.get(link_to(response, "Dashboard")).status_code == 200
    assert link_to(response, "Cache alias default") == "?using=default&minutes=5"


@pytest.mark.parametrize("alias", ["nonsense", "\x00"])
def test_an_unknown_alias_is_not_found(viewer, alias):
    assert viewer.get(DASHBOARD, {"using": alias}).status_code == 404


# What it costs


def test_dashboard_costs_five_round_trips(hold, monkeypatch, viewer):
    monkeypatch.setattr(dashboard, "MAX_READ", 2)
    for number in range(5):
        hold(f"lock {number}").release()
        force(hold, f"lock {number}")
        hold(f"lock {number}")
    viewer.get(DASHBOARD)  # now the server knows the scripts

    with round_trips() as asked:
        response = viewer.get(DASHBOARD)

    assert len(asked) == 5
    assert response.context["total"] == 5
    assert len(response.context["troubles"]) == 5
    assert all("held 1" in outcomes for *_, outcomes in activities(response).values())


def test_a_lock_in_cooldown_without_history_is_no_error(hold, viewer, settings):
    settings.REDISLOCK_HISTORY = 0
    hold("x", at_least_for=20).release()

    assert [*activities(viewer.get(DASHBOARD))] == ["x"]
    locks.force_release("x")


def test_the_locks_of_a_process_are_one_row_that_opens(redis_server, hold, releaser):
    for name in ("first", "second"):
        hold(name, timeout=90)
    postpone(redis_server, "second", seconds=60)
    holder = locks.get("first").holder
    queued = QueueLock(locks.lock("sync"), "queued-0123", ("shop.sync", "an-id"))
    assert queued.acquire(3600)

    response = releaser.get(DASHBOARD)
    [row] = response.context["processes"]
    section = section_of(response, "processes")
    shown = releaser.get(link_to(response, "Show in the list, to release them"))
    asked = releaser.post(f"{RELEASE}?process={row.process}", {"all": "yes"})

    assert row.process == f"{holder.host}:{os.getpid()}"
    assert (row.stale, row.names) == (1, ("first", "second"))
    assert section.count("<details") == 1
    assert {each.name for each in shown.context["cl"].result_list} == {"first", "second"}
    assert {each.info.name for each in asked.context["held"]} == {"first", "second"}
    assert queued.release()
