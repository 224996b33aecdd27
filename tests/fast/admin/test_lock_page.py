"""The page of one lock. `tests/fast/unit/test_advice.py` has what it says about a hold."""

import re

import pytest

from django_redislock import locks
from django_redislock.admin import lock_page as details
from django_redislock.engine import queries
from django_redislock.lock_state import STATES
from django_redislock.lock_types import QueueLock
from tests.pages import (
    LIST,
    acquired_before,
    charts_of,
    listed,
    lock_page,
    postpone,
    rects,
    rows_of,
    text_of,
    words_of,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("empty_history")]

TIMELINE = "Holders and waiters of this lock over time"


# How it stands


HOLDS = {
    # The options of the hold, and for how long its renewal is overdue.
    "held": ({}, 0),
    "late": ({"timeout": 90}, 35),
    "stale": ({"timeout": 90}, 60),
    "unrenewed": ({"auto_renewal": False}, 0),
    "cooldown": ({"at_least_for": 20}, 0),
    "handover": ({"auto_renewal": False}, 0),
}

QUEUED = {"queued": {}, "queued, oddly": {"eta": "2126-13-45T10:00:00", "broker_queue": 2}}


@pytest.mark.parametrize("case", [*HOLDS, *QUEUED])
def test_a_state_is_on_the_page_and_in_the_list(redis_server, hold, viewer, monkeypatch, case):
    if case in QUEUED:
        about = QUEUED[case]
        lock = QueueLock(locks.lock("x"), "queued-0123", ("shop.sync", "an-id"), **about)
        assert lock.acquire(3600)
    else:
        options, overdue = HOLDS[case]
        lock = hold("x", **options)
        if case == "cooldown":
            lock.release()
        elif case == "handover":  # it was granted to a waiter, which has not confirmed it
            monkeypatch.setattr(queries, "GRANT_TTL_MS", 20_000)
            postpone(redis_server, "x", seconds=10)
            acquired_before(redis_server, "x", seconds=-10)
        elif overdue:
            postpone(redis_server, "x", seconds=overdue)
    code = case[:6] if case in QUEUED else case

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
    assert ("<meter" in text_of(changelist)) is (code not in ("queued", "cooldown", "handover"))
    assert rects(charts_of(page)[TIMELINE], "released" if code == "cooldown" else code)


def test_holders_and_waiters_are_shown_up_to_a_bound(wait, viewer, monkeypatch):
    held = [locks.semaphore("pool", 3, timeout=30) for _ in range(3)]
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
    assert ["first" in row[-1] for row in rows_of(page, "queue")] == [True, False]
    assert "2 more holders are not shown." in words_of(fewer)
    assert "The first 1 of 2." in words_of(fewer)


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
