"""The page of one lock. `tests/fast/unit/test_advice.py` has what it says about a hold."""

import re

import pytest

from django_redislock import locks
from django_redislock.admin import lock_page as details
from django_redislock.lock_state import STATES
from django_redislock.lock_types import QueueLock
from tests.pages import (
    LIST,
    RELEASE,
    charts_of,
    forms_of,
    listed,
    lock_page,
    make_past,
    marks,
    minutes_ago,
    place,
    postpone,
    rects,
    rows_of,
    text_of,
    words_of,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("empty_history")]

TIMELINE = "Holders and waiters of this lock over time"


# How it stands


def held(hold, server):
    hold("x", timeout=30)


def late(hold, server):
    hold("x", timeout=90)
    postpone(server, "x", seconds=35)


def stale(hold, server):
    hold("x", timeout=90)
    postpone(server, "x", seconds=60)


def unrenewed(hold, server):
    hold("x", auto_renewal=False)


def queued(hold, server, **about):
    lock = QueueLock(locks.lock("x"), "queued-0123", ("shop.sync", "an-id"), **about)
    assert lock.acquire(3600)


def queued_oddly(hold, server):
    queued(hold, server, eta=[1], broker_queue=2)


def queued_for_no_day(hold, server):
    queued(hold, server, eta="2126-13-45T10:00:00")


def cooldown(hold, server):
    hold("x", at_least_for=20).release()


@pytest.mark.parametrize(
    "make", [held, late, stale, unrenewed, queued, queued_oddly, queued_for_no_day, cooldown]
)
def test_a_state_is_on_the_page_and_in_the_list(redis_server, hold, viewer, make):
    make(hold, redis_server)
    code = make.__name__.partition("_")[0]

    page, changelist = lock_page(viewer, "x"), viewer.get(LIST, {"state": code})
    others = listed(viewer, state="late" if code == "held" else "held")
    locks.force_release("x")

    verdict, state = page.context["verdict"], STATES[code]
    assert verdict.level == code
    assert verdict.head in words_of(page)
    for each in (page, changelist):
        assert f"{state.mark} {state.label}" in words_of(each)
    assert [row.name for row in changelist.context["cl"].result_list] == ["x"]
    assert others == []
    is_held = code not in ("queued", "cooldown")
    assert ("<meter" in text_of(changelist)) is ("Held since" in text_of(page)) is is_held
    assert rects(charts_of(page)[TIMELINE], "released" if code == "cooldown" else code)


@pytest.mark.parametrize(("timeout", "seconds"), [(90, 31), (6, 2.5), (30, 11)])
def test_a_renewal_that_is_a_little_late_is_not_overdue(
    redis_server, hold, viewer, timeout, seconds
):
    hold("busy", timeout=timeout)
    postpone(redis_server, "busy", seconds=seconds)

    assert lock_page(viewer, "busy").context["verdict"].level == "held"


def test_readers_and_writers(wait, viewer):
    with locks.read_lock("prices", timeout=30):
        wait("prices", locks.write_lock("prices", timeout=30))
        words = words_of(lock_page(viewer, "prices"))

    assert "Access reads" in words
    assert "writes" in words
    assert "Weight" not in words


def test_holders_and_waiters_are_shown_up_to_a_bound(wait, viewer, monkeypatch):
    held = [locks.semaphore("pool", 3, timeout=30, metadata={"n": n}) for n in range(3)]
    for each in held:
        assert each.acquire()
    for where in ("first", "second"):
        wait("pool", locks.semaphore("pool", 3, timeout=30, metadata={"place": where}))
    fences = [str(each.fence_token) for each in held]

    page = lock_page(viewer, "pool")
    monkeypatch.setattr(details, "MAX_HOLDERS", 1)
    monkeypatch.setattr(details, "MAX_WAITERS", 1)
    fewer = lock_page(viewer, "pool")
    for each in held:
        each.release()

    assert re.findall(r"<dt>Fencing token</dt><dd>(\d+)</dd>", text_of(page)) == fences
    assert "Waiters 2" in words_of(page)
    first, second = rows_of(page, "queue")
    assert (first[0], "first" in first[-1]) == ("1", True)
    assert (second[0], "second" in second[-1]) == ("2", True)
    assert "2 more holders are not shown." in words_of(fewer)
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


def test_a_free_lock_shows_how_holds_ended(hold, viewer):
    hold("x").release()
    hold("x")
    assert not locks.lock("x").acquire(blocking=False)
    locks.force_release("x")

    page = lock_page(viewer, "x")

    assert "Nobody holds it now." in words_of(page)
    assert {row[1] for row in rows_of(page, "past")} == {"forced", "released"}
    [[_at, outcome, *_, not_held, _token]] = rows_of(page, "refusals")
    assert (outcome, not_held) == ("refused", "-")
    for word in ("refused", "forced", "released"):
        assert f'href="#redislock-{word}"' in text_of(page)


def test_without_history_the_page_shows_only_the_present(hold, viewer, settings):
    settings.REDISLOCK_HISTORY = 0
    hold("now")
    hold("before").release()

    assert "No history is kept: REDISLOCK_HISTORY is 0." in words_of(lock_page(viewer, "now"))
    assert lock_page(viewer, "before").url == LIST


def times_above(page):
    return [each for each in re.findall(r'text-anchor="\w+">([^<]*)<', text_of(page)) if each]


def test_a_timeline_shows_no_time_twice_and_the_dates_of_other_days(hold, redis_server, viewer):
    hold("x").release()
    shown = times_above(lock_page(viewer, "x"))
    assert len(shown) == len({*shown}) > 0

    day = minutes_ago(24 * 60)
    make_past(redis_server, "x", times=1, seconds=60, step=lambda number: 40 * day)
    *days, today = times_above(lock_page(viewer, "x"))
    assert len(days) == 4
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", each) for each in days)
    assert re.fullmatch(r"\d\d:\d\d:\d\d", today)


def test_a_timeline_shows_wait_and_hold_one_after_the_other(two_holds, viewer):
    two_holds("x")

    chart = charts_of(lock_page(viewer, "x"))[TIMELINE]

    first, second = rects(chart, "released")
    [waiting] = rects(chart, "waiting")
    assert place(waiting)[1] == pytest.approx(place(second)[0], abs=1.5)
    assert place(first)[0] <= place(waiting)[0]
    assert marks(chart) == ["released", "released"]
    assert float(first.get("y")) < float(second.get("y"))


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
    action = f"{RELEASE}?using=twin"

    [form] = forms_of(lock_page(releaser, "x", using="twin"), action)
    asked = releaser.post(action, form)
    releaser.post(action, {"seen": asked.context["seen"], "confirmed": "yes"})

    assert not lock.owned()
