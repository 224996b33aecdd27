"""What an operator reads about a hold, by its snapshot. The admin and the terminal show it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_redislock import LockInfo, locks
from django_redislock.advice import advice
from django_redislock.lock_state import state_of, urgency
from django_redislock.sentences import release_steps, renewal_text
from django_redislock.snapshots import Holder, Holding

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
PROCESS = Holder(host="web-1", pid=81)
TASK = replace(PROCESS, task_name="shop.sync", task_id="id-1")


def hold(*, age: float, left: float, timeout: float = 90, **facts: Any) -> Holding:
    """A hold that began `age` seconds ago. Its lease has `left` seconds left."""
    others = {"holder": PROCESS, "metadata": {}, "renewed": True} | facts
    return Holding(
        token="t",
        stored_token="t",
        fence_token=7,
        weight=1,
        timeout=timeout,
        waited=0,
        acquired_at=NOW - timedelta(seconds=age),
        expires_at=NOW + timedelta(seconds=left),
        ttl=left,
        **others,
    )


def unrenewed(*, age: float, left: float, **facts: Any) -> Holding:
    return hold(age=age, left=left, renewed=False, **facts)


def later(*, age: float, left: float) -> Holding:
    return unrenewed(age=age, left=left, renews_later=True)


def queued(**metadata: str) -> Holding:
    return unrenewed(age=5, left=85, holder=TASK, metadata={"queued": True} | metadata)


def lock(*holds: Holding) -> LockInfo:
    return LockInfo("a", "mutex", 1, "held", 0, 0.0, holds)


IN_USE = "In use: releasing is not safe."
UNKNOWN = "ot known whether releasing is safe."
FIRST = "check the process first."
GONE = "If the process is gone, run: manage.py locks release a"

CASES = {
    # The hold, its state, its renewal, and the head of the advice.
    "new": (hold(age=5, left=85), "held", "not renewed yet", IN_USE),
    "renewed": (hold(age=60, left=85), "held", "renewed 5.0s ago", IN_USE),
    "late": (
        hold(age=35, left=55),
        "late",
        "not renewed yet",
        f"Renewal overdue for 5.0s: {FIRST}",
    ),
    "stale": (
        hold(age=60, left=30),
        "stale",
        "not renewed yet",
        f"Renewal overdue for 30s: {FIRST}",
    ),
    "not renewed": (unrenewed(age=60, left=30), "unrenewed", "not renewed", f"N{UNKNOWN}"),
    "extended": (later(age=5, left=95), "unrenewed", "extended", f"Extended: n{UNKNOWN}"),
    "renewed later": (
        later(age=5, left=85),
        "unrenewed",
        "renewal starts later",
        f"Renewal starts later: n{UNKNOWN}",
    ),
    "renewed before": (
        later(age=95, left=60),
        "unrenewed",
        "renewed before",
        f"Renewed before: {FIRST}",
    ),
    "handed over": (
        hold(age=0.5, left=1.5, unconfirmed=True),
        "handover",
        "handed over, not confirmed yet",
        "Handover: releasing is not safe.",
    ),
    "queued": (queued(), "queued", "not renewed", "Queued: the task has not started."),
    "in cooldown": (
        hold(age=5, left=15, timeout=0),
        "cooldown",
        "not renewed yet",
        "In cooldown.",
    ),
}

LAST_STEPS = dict.fromkeys(("late", "stale", "unrenewed"), GONE) | {
    "queued": "If the message is gone, run: manage.py locks release a",
    "cooldown": "To end the cooldown now, run: manage.py locks release a",
}


@pytest.mark.parametrize(("held", "state", "renewal", "head"), CASES.values(), ids=CASES)
def test_the_state_of_a_hold_and_what_to_do(
    held: Holding, state: str, renewal: str, head: str
) -> None:
    info = lock(held)
    assert state_of(info).code == advice(info, str).level == state
    assert renewal_text(held) == renewal
    assert advice(info, str).head == head
    last = [LAST_STEPS[state]] if state in LAST_STEPS else []
    assert release_steps(locks, info)[-1:] == last


@pytest.mark.parametrize(("timeout", "late"), [(90, 1), (6, 0.5), (30, 1)])
def test_a_renewal_that_is_a_little_late_is_not_overdue(timeout: float, late: float) -> None:
    age = timeout / 3 + late
    info = lock(hold(age=age, left=timeout - age, timeout=timeout))
    assert state_of(info).code == "held"


def test_locks_that_need_a_look_come_first_and_then_the_longest_waits() -> None:
    stale, late, held = (CASES[name][0] for name in ("stale", "late", "renewed"))
    waits = {"b": (held, 5.0), "a": (held, 1.0), "d": (late, 0.0), "c": (stale, 0.0)}
    infos = [
        replace(lock(hold), name=name, longest_wait=wait) for name, (hold, wait) in waits.items()
    ]
    assert [each.name for each in sorted(infos, key=urgency)] == ["c", "d", "b", "a"]
