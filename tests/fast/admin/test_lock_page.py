"""The page of one lock."""

import html
import re

import pytest

from django_redislock import locks
from django_redislock.admin import lock_page as details
from django_redislock.lock_state import STATES
from django_redislock.lock_types import QueueLock
from tests.pages import (
    LIST,
    RELEASE,
    acquired_before,
    charts_of,
    link_to,
    lock_page,
    make_past,
    marks,
    minutes_ago,
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


def renewed_later(hold, server):
    hold("x", timeout=30, at_least_for=60)


def renewed_before(hold, server):
    """As after 120 s: the 60 s have passed, so the 20 s that are left are of a renewal."""
    hold("x", timeout=30, at_least_for=60)
    postpone(server, "x", seconds=40)
    acquired_before(server, "x", seconds=80)


def queued(hold, server, **about):
    lock = QueueLock(locks.lock("x"), "queued-0123", ("shop.sync", "an-id"), **about)
    assert lock.acquire(3600)


def queued_for_later(hold, server):
    queued(hold, server, eta="2126-11-25T10:00:00+00:00", broker_queue="slow")


def queued_oddly(hold, server):
    queued(hold, server, eta=[1], broker_queue=2)


def queued_for_no_day(hold, server):
    queued(hold, server, eta="2126-13-45T10:00:00")


def cooldown(hold, server):
    hold("x", at_least_for=20).release()


OF_A_QUEUE_LOCK = r"expires in (1h 00m|59m \d+s)"

STANDS = [
    (held, "held", "In use: releasing is not safe.", r"running \d.* within 10s"),
    (late, "late", r"Renewal overdue for 5\.\ds: check the process first.", "35s ago.* every 30s"),
    (stale, "stale", r"Renewal overdue for 3\ds: check the process", "1m 00s ago.* every 30s"),
    (unrenewed, "unrenewed", "Not known whether releasing is safe.", "expires in (30|29)"),
    (renewed_later, "unrenewed", "Renewal starts later: not known", "expires in (1m 00|59)"),
    (renewed_before, "unrenewed", "Renewed before: check the process first.", "in (20|19)"),
    (queued, "queued", "Queued: the task has not started.", OF_A_QUEUE_LOCK),
    (queued_for_later, "queued", "Queued", rf"2126-11-2[56] .* “slow”.* {OF_A_QUEUE_LOCK}"),
    (queued_oddly, "queued", "Queued", OF_A_QUEUE_LOCK),
    (queued_for_no_day, "queued", "Queued", OF_A_QUEUE_LOCK),
    (cooldown, "cooldown", "In cooldown.", "another (20|19)"),
]
"""How a lock stands: its state, the advice, and the figures in its reason."""


@pytest.mark.parametrize(("stand", "code", "head", "figures"), STANDS)
def test_a_state_is_on_the_page_and_in_the_list(
    redis_server, hold, viewer, stand, code, head, figures
):
    stand(hold, redis_server)

    page, listed = lock_page(viewer, "x"), viewer.get(LIST, {"state": code})
    others = viewer.get(LIST, {"state": "late" if code == "held" else "held"})
    locks.force_release("x")

    verdict, state = page.context["verdict"], STATES[code]
    assert verdict.level == code
    assert re.match(head, verdict.head)
    assert re.search(figures, verdict.reason)
    for each in (page, listed):
        assert f"{state.mark} {state.label}" in words_of(each)
    assert html.escape(str(state.meaning)) in text_of(listed)
    assert ("<meter" in text_of(listed)) is (code not in ("queued", "cooldown"))
    assert [row.name for row in listed.context["cl"].result_list] == ["x"]
    assert [row.name for row in others.context["cl"].result_list] == []
    assert rects(charts_of(page)[TIMELINE], "released" if code == "cooldown" else code)


@pytest.mark.parametrize(("stand", "command"), [(held, "py-spy dump --pid"), (stale, "ps -p")])
def test_the_page_names_the_holder_and_how_to_look_at_it(
    redis_server, hold, wait, viewer, stand, command
):
    stand(hold, redis_server)
    wait("x")

    page, holder = lock_page(viewer, "x"), locks.get("x").holder

    assert f" · {holder.host}:{holder.pid} · " in words_of(page)
    assert page.context["verdict"].command == f"{command} {holder.pid}"
    assert f"<code>{command} {holder.pid}</code>" in text_of(page)
    assert holder.host in page.context["verdict"].next_step
    assert "Waiters 1" in words_of(page)


def test_what_does_not_apply_is_not_shown(hold, redis_server, viewer):
    for stand in (queued, cooldown):
        stand(hold, redis_server)
        page = lock_page(viewer, "x")
        locks.force_release("x")
        for text in ("Held since", "held now", "<progress"):
            assert text not in text_of(page)


def test_some_of_several_holders_are_overdue(redis_server, viewer):
    with locks.semaphore("pool", 2, timeout=90):
        postpone(redis_server, "pool", seconds=35)
        with locks.semaphore("pool", 2, timeout=90):
            some = lock_page(viewer, "pool").context["verdict"]
            postpone(redis_server, "pool", seconds=35)
            every = lock_page(viewer, "pool").context["verdict"]

    assert some.head == "Some renewals are overdue."
    assert some.reason.startswith("1 of 2 ")
    assert re.match("2 leases .* 1m 10s", every.reason)


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


def times_above(page):
    return [each for each in re.findall(r'text-anchor="\w+">([^<]*)<', text_of(page)) if each]


def test_a_short_timeline_shows_no_time_twice(hold, viewer):
    hold("x")
    shown = times_above(lock_page(viewer, "x"))
    assert len(shown) in (1, 2)
    assert len(shown) == len({*shown})


def test_a_timeline_of_many_days_shows_dates(hold, redis_server, viewer):
    hold("x").release()
    day = minutes_ago(24 * 60)
    make_past(redis_server, "x", times=1, seconds=60, step=lambda number: 40 * day)
    *days, today = times_above(lock_page(viewer, "x"))
    assert len(days) == 4
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", each) for each in days)
    assert re.fullmatch(r"\d\d:\d\d:\d\d", today)


def test_timeline_shows_wait_and_hold_one_after_the_other(two_holds, viewer):
    two_holds("x")

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

    page = lock_page(releaser, "x", using="twin")
    [action] = re.findall(rf'action="({RELEASE}[^"]*)"', text_of(page))
    asked = releaser.post(action, {"seen": page.context["seen"]})
    releaser.post(action, {"seen": asked.context["seen"], "confirmed": "yes"})

    assert action == f"{RELEASE}?using=twin"
    assert not lock.owned()


def test_a_page_is_about_one_alias(hold, viewer, other):
    theirs = hold("x", other)

    missing, found = lock_page(viewer, "x"), lock_page(viewer, "x", using="other")

    assert missing.url == LIST
    assert messages_of(missing) == ["“x” is not locked on “default” now."]
    assert str(theirs.fence_token) in words_of(found)
    assert "Cache alias other" in words_of(found)
    for text in ("All locks", "Dashboard"):
        assert link_to(found, text).endswith("?using=other")
    assert lock_page(viewer, "y", using="other").url == f"{LIST}?using=other"


@pytest.mark.filterwarnings("default")
def test_the_page_of_an_unreachable_alias_leads_to_the_others(
    hold, viewer, other, unusable, settings
):
    theirs = hold("x", other)
    settings.REDISLOCK_CACHE = "away"

    for query in ({}, {"using": "away"}):
        refused = lock_page(viewer, "x", **query)
        assert refused.status_code == 503
        assert "The locks of “away” cannot be read: " in html.unescape(text_of(refused))
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
