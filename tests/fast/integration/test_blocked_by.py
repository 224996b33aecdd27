"""An acquisition that fails names the lock that was in the way, and its holder."""

import re

import pytest

from django_redislock import LockError, locks
from tests.lock_tools import start, waiting


def test_the_error_names_the_holder(hold):
    hold("a")
    with pytest.raises(LockError) as caught, locks.lock("a", blocking_timeout=0.1):
        pass
    holder = locks.get("a").holder
    assert caught.value.holder == holder
    expected = rf"Lock 'a' was not acquired within 0\.1 s: held by {holder.host}:{holder.pid} for "
    assert re.fullmatch(expected + r"\d+\.\ds", str(caught.value.message))


def test_the_error_counts_the_waiters(hold):
    held = hold("a")
    waiter = start(lambda: locks.lock("a").acquire())
    waiting(locks, "a", 1)
    with pytest.raises(LockError, match=", 1 waiting"), locks.lock("a", blocking=False):
        pass
    held.release()
    assert waiter.result(60)
    assert locks.force_release("a") == 1


def test_the_error_of_several_names_the_lock_that_blocked(hold):
    assert start(locks.lock("b", auto_renewal=False).acquire).result(60)
    many = locks.lock_many(["a", "b", "c"], reentrant=True, blocking=False)
    with locks.lock("a"), pytest.raises(LockError, match=r"^Lock 'b' was not acquired") as caught:
        many.__enter__()
    assert caught.value.lock_name == "b"
    assert caught.value.holder == locks.get("b").holder
    locks.force_release("b")


def test_a_cooldown_is_named():
    with locks.lock("a", at_least_for=60):
        pass
    lock = locks.lock("a", blocking=False)
    with pytest.raises(LockError, match=r"it is in cooldown for (59s|1m 00s)"), lock:
        pass
    assert locks.force_release("a") == 1
