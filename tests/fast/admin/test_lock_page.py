"""The page of one lock."""

import html
import re

import pytest

from django_redislock import locks
from django_redislock.admin import lock_page as details
from django_redislock.lock_types import QueueLock
from tests.pages import (
    LIST,
    RELEASE,
    acquired_before,
    charts_of,
    link_to,
    lock_page,
    marks,
    place,
    postpone,
    rects,
    round_trips,
    rows_of,
    text_of,
    words_of,
)

from .test_admin import messages_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("empty_history")]

TIMELINE = "Holders and waiters of this lock over time"


# How it stands


def test_a_holder_that_renews_and_its_waiters(hold, wait, viewer):
    hold("invoice", timeout=30)
    wait("invoice")
    wait("invoice")

    response = lock_page(viewer, "invoice")

    words = words_of(response)
    holder = locks.get("invoice").holder
    assert re.search(rf"● held · {holder.host}:{holder.pid} · [\d.]+s ", words)
    assert "Waiters 2" in words
    assert response.context["verdict"].level == "held"
    assert "In use: releasing is not safe." in words
    assert "even if its work makes no progress" in words
    assert f"run on {holder.host}: py-spy dump --pid {holder.pid} Copy" in words
    assert f"<code>py-spy dump --pid {holder.pid}</code>" in text_of(response)
    assert "the holder notices within 10s, but keeps working" in words


def test_a_stale_holder(redis_server, hold, viewer):
    hold("stopped", timeout=90)
    postpone(redis_server, "stopped", seconds=60)

    response = lock_page(viewer, "stopped")

    words = words_of(response)
    assert response.context["verdict"].level == "stale"
    assert "▲ stale · " in words
    assert (
        "The lease began or was last renewed 1m 00s ago, and its renewal was due every 30s."
        in words
    )
    assert re.search(r"Renewal overdue for [\d.]+s: check the process first\.", words)
    assert "Release the lock only if its process is gone." in words
    assert rects(charts_of(response)[TIMELINE], "stale")


def test_some_of_several_holders_are_overdue(redis_server, viewer):
    with locks.semaphore("pool", 2, timeout=90):
        postpone(redis_server, "pool", seconds=35)
        with locks.semaphore("pool", 2, timeout=90):
            some = lock_page(viewer, "pool")
            postpone(redis_server, "pool", seconds=35)
            every = lock_page(viewer, "pool")

    assert "1 of 2 holders has not renewed its lease in time." in words_of(some)
    assert "2 leases were not renewed, one of them for 1m 10s" in words_of(every)


def test_a_lease_that_is_not_renewed(hold, viewer):
    hold("fixed", auto_renewal=False)

    response = lock_page(viewer, "fixed")

    assert response.context["verdict"].level == "unrenewed"
    assert "○ held (no renewal) · " in words_of(response)
    assert "Automatic renewal is off" in words_of(response)


def test_a_renewal_is_overdue_before_the_holder_is_stale(redis_server, hold, viewer):
    hold("late", timeout=90)
    postpone(redis_server, "late", seconds=35)

    words, listed = words_of(lock_page(viewer, "late")), words_of(viewer.get(LIST))

    assert "△ late · " in words
    assert "last renewed 35s ago, and its renewal was due every 30s." in words
    assert "Renewal overdue for 5." in words
    assert "s: check the process first." in words
    assert "In use" not in words
    assert lock_page(viewer, "late").context["verdict"].level == "late"
    assert "△ late" in listed


@pytest.mark.parametrize(("timeout", "seconds"), [(90, 31), (6, 2.5), (30, 11)])
def test_a_renewal_that_is_a_little_late_is_not_overdue(
    redis_server, hold, viewer, timeout, seconds
):
    hold("busy", timeout=timeout)
    postpone(redis_server, "busy", seconds=seconds)

    assert lock_page(viewer, "busy").context["verdict"].level == "held"


def test_renewal_starts_later_with_a_long_at_least_for(redis_server, hold, viewer):
    hold("daily", timeout=30, at_least_for=60)

    words, listed = words_of(lock_page(viewer, "daily")), words_of(viewer.get(LIST))

    assert "Renewal starts later: not known whether releasing is safe." in words
    assert "Automatic renewal is off" not in words
    assert "○ held (no renewal)" in listed
    assert locks.get("daily").renews_later

    # As after 120 s: the 60 s have passed, so the 20 s that are left are of a renewal.
    postpone(redis_server, "daily", seconds=40)
    acquired_before(redis_server, "daily", seconds=80)

    words = words_of(lock_page(viewer, "daily"))
    assert "Renewed before: check the process first." in words


def test_the_queue_lock_of_a_task_that_was_sent(viewer):
    token, task = "queued-0123", ("shop.tasks.sync", "an-id")
    about = {"eta": "2126-11-25T10:00:00+00:00", "broker_queue": "slow"}
    place = QueueLock(locks.lock("sync"), token, task, **about)
    assert place.acquire(3600)

    page, listed = lock_page(viewer, "sync"), words_of(viewer.get(LIST, {"state": "queued"}))
    place.release()

    words = words_of(page)
    assert page.context["verdict"].level == "queued"
    assert "◇ queued · shop.tasks.sync (" in words
    assert "Queued: the task has not started." in words
    assert re.search(r"It starts at 2126-11-2[56] \S+ at the earliest\.", words)
    assert "It is in the broker queue “slow”." in words
    assert re.search(r"The queue lock expires in (1h 00m|59m \d+s), if the task has not", words)
    assert "A release does not cancel the queued task" in words
    assert "Not known" not in words
    assert "Held since" not in words
    assert "held now" not in words
    assert rects(charts_of(page)[TIMELINE], "queued")
    assert "◇ queued" in listed


ODD = [{"eta": "2126-13-45T10:00:00"}, {"eta": [1], "broker_queue": 2}]


@pytest.mark.parametrize("about", ODD)
def test_a_queue_lock_with_odd_metadata(viewer, about):
    place = QueueLock(locks.lock("sync"), "queued-0123", ("shop.tasks.sync", "an-id"), **about)
    assert place.acquire(3600)

    page = lock_page(viewer, "sync")
    place.release()

    assert page.context["verdict"].level == "queued"
    assert "at the earliest" not in words_of(page)


def test_a_cooldown(hold, viewer):
    hold("often", at_least_for=20).release()

    response = lock_page(viewer, "often")
    locks.force_release("often")

    assert response.context["verdict"].level == "cooldown"
    assert "which stays locked for another" in words_of(response)
    assert "Last holder" in words_of(response)
    assert "Cooldown ends" in words_of(response)
    assert "Held since" not in words_of(response)
    assert "held now" not in words_of(response)
    assert "<progress" not in text_of(response)


def test_readers_and_writers(wait, viewer):
    with locks.read_lock("prices", timeout=30):
        wait("prices", locks.write_lock("prices", timeout=30))
        response = lock_page(viewer, "prices")

    words = words_of(response)
    assert "Access reads" in words
    assert "writes" in words
    assert "Weight" not in words
    assert "Capacity" not in words


def test_a_free_lock_has_its_past(hold, viewer):
    hold("gone").release()

    response = lock_page(viewer, "gone")

    assert response.status_code == 200
    assert "Nobody holds it now." in words_of(response)
    assert [row[1] for row in rows_of(response, "past")] == ["released"]


def test_without_history_the_page_shows_only_the_present(hold, viewer, settings):
    settings.REDISLOCK_HISTORY = 0
    hold("now")
    hold("before").release()

    assert "No history is kept: REDISLOCK_HISTORY is 0." in words_of(lock_page(viewer, "now"))
    assert lock_page(viewer, "before").url == LIST


# Who


def test_every_holder_is_shown(viewer, monkeypatch):
    held = [locks.semaphore("pool", 3, timeout=30, metadata={"n": n}) for n in range(3)]
    for each in held:
        assert each.acquire()

    response = lock_page(viewer, "pool")
    fences = [str(each.fence_token) for each in held]
    monkeypatch.setattr(details, "MAX_HOLDERS", 1)
    fewer = lock_page(viewer, "pool")
    for each in held:
        each.release()

    shown = re.findall(r"<dt>Fencing token</dt><dd>(\d+)</dd>", text_of(response))
    assert "(+2) · " in words_of(response)
    assert "The processes of 3 holders were running" in words_of(response)
    assert shown == fences
    assert "2 more holders are not shown." in words_of(fewer)


def test_the_queue_is_in_its_order(hold, wait, viewer, monkeypatch):
    hold("queue")
    wait("queue", metadata={"place": "first"})
    wait("queue", metadata={"place": "second"})

    rows = rows_of(lock_page(viewer, "queue"), "queue")
    monkeypatch.setattr(details, "MAX_WAITERS", 1)
    fewer = lock_page(viewer, "queue")

    assert [row[0] for row in rows] == ["1", "2"]
    assert "first" in rows[0][-1]
    assert "second" in rows[1][-1]
    assert "The first 1 of 2." in words_of(fewer)


def test_metadata_are_redacted_everywhere(hold, wait, viewer, settings):
    settings.REDISLOCK_REDACT = ["pass*"]
    hold("x", metadata={"password": "s3cret", "why": "because"}).release()
    hold("x", metadata={"password": "s3cret", "why": "because"})
    wait("x", metadata={"password": "s3cret", "why": "because"})

    text = text_of(lock_page(viewer, "x"))

    assert "s3cret" not in text
    assert text.count("***") == text.count("because") == 3


# The past


def test_history_shows_how_holds_ended(hold, viewer):
    hold("x").release()
    hold("x")
    locks.force_release("x")
    hold("x")
    assert not locks.lock("x").acquire(blocking=False)

    response = lock_page(viewer, "x")

    held = {row[1]: row[4] for row in rows_of(response, "past")}
    assert held.keys() == {"forced", "released"}
    [[_at, outcome, *_, not_held, _token]] = rows_of(response, "refusals")
    assert (outcome, not_held) == ("refused", "-")
    for word in ("refused", "forced", "released"):
        assert f'href="#redislock-{word}"' in text_of(response)
    assert held["released"].endswith("s")


def test_timeline_shows_wait_and_hold_one_after_the_other(two_holds, viewer):
    two_holds("x", 0.1)

    chart = charts_of(lock_page(viewer, "x"))[TIMELINE]

    first, second = rects(chart, "released")
    [waiting] = rects(chart, "waiting")
    assert place(waiting)[1] == pytest.approx(place(second)[0], abs=1.5)
    assert place(first)[0] <= place(waiting)[0]
    assert marks(chart) == ["released", "released"]
    heights = [float(rect.get("y")) for rect in (first, second)]
    assert heights[0] < heights[1]


# Untrusted text, numbers and time zones


def test_times_are_of_the_current_time_zone(hold, viewer, settings):
    settings.TIME_ZONE = "Asia/Kolkata"
    hold("x").release()
    ended = locks.history("x")[0].at

    [[at, *_]] = rows_of(lock_page(viewer, "x"), "past")

    minutes = (ended.hour * 60 + ended.minute + 330) % (24 * 60)
    assert at[-8:-3] == f"{minutes // 60:02}:{minutes % 60:02}"


# Several caches


def test_a_lock_is_released_through_any_alias_of_its_server(hold, releaser, settings):
    settings.CACHES = {**settings.CACHES, "twin": settings.CACHES["default"]}
    lock = hold("x")

    seen = lock_page(releaser, "x", using="twin").context["seen"]
    asked = releaser.post(RELEASE, {"seen": seen})
    releaser.post(RELEASE, {"seen": asked.context["seen"], "confirmed": "yes"})

    assert "twin" in seen
    assert not lock.owned()


@pytest.mark.filterwarnings("default")
def test_a_lock_is_found_on_another_alias(hold, viewer, other, unusable):
    theirs = hold("x", other)

    found, missing = lock_page(viewer, "x"), lock_page(viewer, "y")

    assert str(theirs.fence_token) in words_of(found)
    assert "Cache alias other" in words_of(found)
    assert "The locks of “away” cannot be read: " in html.unescape(text_of(found))
    assert lock_page(viewer, "x", using="default").url == LIST
    assert missing.url == LIST
    unknown = "“y” is not locked on the cache aliases that can be read."
    assert messages_of(missing)[-1] == unknown


@pytest.mark.filterwarnings("default")
def test_a_link_to_an_unreachable_alias_shows_no_lock_of_another(
    hold, viewer, other, unusable, settings
):
    theirs = hold("x", other)
    settings.REDISLOCK_CACHE = "away"

    for query in ({}, {"using": "away"}):
        refused = lock_page(viewer, "x", **query)
        assert refused.status_code == 503
        assert "The locks of “away” cannot be read: " in html.unescape(text_of(refused))
        assert viewer.get(link_to(refused, "All locks")).status_code == 200
        there = viewer.get(f"{LIST}x/change/{link_to(refused, 'Cache alias other')}")
        assert str(theirs.fence_token) in words_of(there)


# What it costs


def test_page_costs_three_round_trips(hold, wait):
    hold("x").release()
    hold("x")
    wait("x")
    details.read_lock(locks, "x")  # now the server knows the scripts

    with round_trips() as asked:
        looked = details.read_lock(locks, "x")

    assert looked.waiters
    assert looked.events
    assert len(asked) == 3
