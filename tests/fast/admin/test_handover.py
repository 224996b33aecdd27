"""A lock that was granted to a waiter is shown as a handover until the waiter has confirmed it."""

import json
import signal
from collections.abc import Iterator

import pytest

from django_redislock import locks
from django_redislock.engine import queries
from django_redislock.lock_state import state_of
from tests.commands import call
from tests.lock_tools import renewed, waiting
from tests.pages import DASHBOARD, LIST, RELEASE, lock_page, words_of
from tests.tools import Child, wait_until

pytestmark = pytest.mark.django_db

GRANT_SECONDS = 20
"""The lease of a grant in these tests. Until it expires, all pages must have been read."""

WAIT = f"""
from django_redislock import locks
from django_redislock.engine import store
store.GRANT_TTL_SECONDS = {GRANT_SECONDS}
lock = locks.lock("x", timeout=30)
lock.acquire()
say("held")
hear()
lock.release()
say("released")
hear()
"""


@pytest.fixture
def waiter(hold, monkeypatch) -> Iterator[Child]:
    """A process that was granted the lock while it was suspended."""
    monkeypatch.setattr(queries, "GRANT_TTL_MS", GRANT_SECONDS * 1000)
    first = hold("x")
    with Child(WAIT) as child:
        waiting(locks, "x", 1)
        child.process.send_signal(signal.SIGSTOP)
        first.release()
        assert locks.get("x").holder.pid == child.pid
        yield child
    locks.force_release("x")


def test_a_grant_is_a_handover_everywhere_until_it_is_confirmed(waiter: Child, releaser) -> None:
    info, form = locks.get("x"), lock_page(releaser, "x").context["seen"]
    pages = [
        releaser.get(LIST),
        lock_page(releaser, "x"),
        releaser.get(DASHBOARD),
        releaser.post(RELEASE, {"seen": form}),
    ]
    table, shown, json_text = call("list"), call("show", "x"), call("list", "--format", "json")

    assert (info.unconfirmed, info.timeout, state_of(info).code) == (True, 30, "handover")
    assert 0 < info.ttl <= GRANT_SECONDS
    for page in pages:
        assert "handover" in words_of(page)
        assert "of 30s" not in words_of(page)
    assert table.splitlines()[1].split()[:2] == ["x", "handover"]
    assert "locks release" not in shown
    assert json.loads(json_text)[0]["state"] == "handover"

    waiter.process.send_signal(signal.SIGCONT)
    waiter.expect("held")
    wait_until(lambda: not locks.get("x").unconfirmed)
    assert state_of(locks.get("x")).code == "held"
    assert locks.get("x").ttl > GRANT_SECONDS
    waiter.tell()
    waiter.expect("released")


@pytest.mark.parametrize("timeout", [0.5, 2.5])
def test_no_other_hold_is_a_handover(hold, timeout: float) -> None:
    lock = hold("x", timeout=timeout)
    assert not locks.get("x").unconfirmed
    renewed(locks, "x")
    assert not locks.get("x").unconfirmed
    lock.extend(1.9, replace_ttl=True)
    assert not locks.get("x").unconfirmed
