"""Managers: list the locks, and release them by force."""

import pytest

from django_redislock import LockLost, LockManager, locks
from django_redislock.signals import lock_force_released
from tests.lock_tools import listening
from tests.tools import wait_until


@pytest.fixture
def forced():
    """The arguments of each signal `lock_force_released`."""
    sent = []
    with listening(lock_force_released, lambda signal, **about: sent.append(about)):
        yield sent


def names(infos):
    return sorted(info.name for info in infos)


def test_active_lists_the_held_locks(manager, hold):
    held = [hold(name, manager) for name in "abc"]
    assert manager.count() == 3
    assert names(manager.active()) == names(manager.active(kind="mutex")) == ["a", "b", "c"]
    assert names(manager.active("a", kind="mutex")) == ["a"]
    assert names(manager.active(kind="semaphore")) == []
    for info in manager.active():
        assert info.token == manager.get(info.name).token
    held.pop().release()
    assert names(manager.active()) == ["a", "b"]


def test_an_expired_hold_is_not_listed_although_another_lease_lasts(manager):
    long = manager.semaphore("a", 2, timeout=3600, auto_renewal=False)
    short = manager.semaphore("a", 2, timeout=0.3, auto_renewal=False)
    assert long.acquire()
    assert short.acquire()
    long.release()
    wait_until(lambda: manager.get("a") is None)
    assert manager.count() == manager.page().total == 0
    assert {event.outcome for event in manager.history("a", limit=2)} == {"released", "expired"}


def test_force_release_by_token_spares_another_holder(manager, forced, hold):
    first = hold("a", manager)
    old = first.token
    first.release()
    second = hold("a", manager)
    token = second.token
    assert manager.force_release("a", old) == 0
    assert forced == []
    assert second.owned()
    assert manager.force_release("a", token, by=7, reason="It hangs\x1b") == 1
    about = {"using": manager.alias, "name": "a", "tokens": (token,)}
    assert forced == [{"sender": LockManager, **about, "by": 7, "reason": "It hangs\x1b"}]
    [event] = manager.history("a", limit=1)
    assert (event.outcome, event.by, event.reason) == ("forced", "7", r"It hangs\x1b")
    with pytest.raises(LockLost):
        second.release()


@pytest.mark.parametrize("wrong", [5, b"why", "x" * 501])
def test_a_reason_is_a_short_text(hold, wrong):
    lock = hold("a")
    with pytest.raises((TypeError, ValueError), match="reason must"):
        locks.force_release("a", reason=wrong)
    assert lock.owned()


def test_a_failing_receiver_does_not_prevent_a_forced_release(hold):
    def fail(sender, **about):
        raise ZeroDivisionError

    hold("a")
    with listening(lock_force_released, fail):
        assert locks.force_release("a") == 1


def test_the_default_alias():
    assert locks.using(None).alias == locks.alias == "default"
    assert repr(locks.using("x")) == "<LockManager 'x'>"
