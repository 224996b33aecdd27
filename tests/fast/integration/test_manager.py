"""Managers: list the locks, and release those of others."""

import asyncio

import pytest

from django_redislock import LockLost, LockManager, locks
from django_redislock.signals import lock_force_released
from tests.lock_tools import listening, start, waiting
from tests.tools import Child, wait_until


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
    assert locks.using(None).alias == locks.alias == "default"
    assert repr(locks.using("x")) == "<LockManager 'x'>"


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
    for wrong in (5, b"why", "x" * 501):
        with pytest.raises((TypeError, ValueError), match="reason must"):
            manager.force_release("a", reason=wrong)
    assert manager.force_release("a", old) == 0
    assert forced == []
    assert second.owned()

    def fail(sender, **about):
        raise ZeroDivisionError

    with listening(lock_force_released, fail):
        assert manager.force_release("a", token, by=7, reason="It hangs\x1b") == 1
    about = {"using": manager.alias, "name": "a", "tokens": (token,)}
    assert forced == [{"sender": LockManager, **about, "by": 7, "reason": "It hangs\x1b"}]
    [event] = manager.history("a", limit=1)
    assert (event.outcome, event.by, event.reason) == ("forced", "7", r"It hangs\x1b")
    with pytest.raises(LockLost):
        second.release()


# release_for(): one process acquires a lock, and another one releases it

ACQUIRE = """
from django_redislock import locks

def acquire():
    lock = locks.lock("import", timeout=60, auto_renewal=False)
    assert lock.acquire()
    return lock.token

say(acquire())
hear()
"""


def test_a_process_releases_the_lock_of_another_one(forced):
    with Child(ACQUIRE) as child:
        token = child.expect("")
        waiter = start(locks.lock("import").acquire)
        waiting(locks, "import", 1)
        assert locks.release_for("import", token) is True
        assert waiter.result(60)
        assert asyncio.run(locks.arelease_for("import", token)) is False
        child.tell()
        assert child.wait() == 0
    ended = [each.outcome for each in locks.history("import") if each.holder.pid == child.pid]
    assert ended == ["released"]
    assert not forced
    locks.force_release("import")


def test_a_chosen_token_releases_its_lock():
    lock = locks.lock("import", timeout=1.5)
    assert lock.acquire(token="import-42")
    assert locks.release_for("import", "import") is False
    assert locks.release_for("import", lock.token, at_least_for=60) is True
    assert locks.get("import").state == "cooldown"
    wait_until(lambda: lock.lost)  # by its renewal
    with pytest.raises(LockLost):
        lock.assert_held()
    locks.force_release("import")
