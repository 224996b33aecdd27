"""A hold that lasts longer than `max_hold` is lost, although its holder still runs."""

from functools import partial

import pytest

from django_redislock import LockLost, locks
from tests.lock_tools import free, start, waiting


@pytest.mark.parametrize("make", [partial(locks.lock, "a"), partial(locks.lock_many, ["a", "b"])])
def test_the_lock_is_renewed_until_max_hold_and_then_lost(moving_clock, make):
    lost = []
    lock = make(timeout=30, max_hold=50, on_lost=lost.append)
    with lock:
        moving_clock.forward(25)  # each acquisition has its own
    assert lock.acquire()
    for _ in range(3):
        moving_clock.forward(15)
        lock.assert_held()
    assert lost == []
    moving_clock.forward(6)
    assert lost == [lock]
    assert lock.lost
    with pytest.raises(LockLost):
        lock.release()
    assert locks.get("a") is None


def test_the_lease_expires_if_the_holder_hangs():
    lock = locks.lock("a", timeout=0.5, max_hold=0.7)
    assert lock.acquire()
    free(locks, "a")
    with pytest.raises(LockLost):
        lock.release()


def test_an_extension_ends_at_max_hold(moving_clock):
    lock = locks.lock("a", timeout=30, max_hold=50)
    assert lock.acquire()
    lock.extend(100)
    assert locks.get("a").ttl <= 50  # so that others acquire it then
    moving_clock.pass_time(49)
    lock.assert_held()
    moving_clock.pass_time(2)
    with pytest.raises(LockLost):
        lock.assert_held()
    with pytest.raises(LockLost):
        lock.release()


def test_the_wait_for_another_lock_does_not_count(hold, moving_clock):
    first = hold("b")
    lock = locks.lock_many(["a", "b"], timeout=30, max_hold=50)

    def acquire():
        assert lock.acquire()
        moving_clock.forward(1)  # the renewal confirms the grant
        moving_clock.forward(24)
        lock.assert_held()
        lock.release()

    acquiring = start(acquire)
    waiting(locks, "b", 1)
    moving_clock.forward(28)
    first.release()
    acquiring.result(60)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_hold": 30}, "max_hold=30 must be greater than timeout=30"),
        ({"max_hold": 40, "auto_renewal": False}, "max_hold=40 .* auto_renewal=False"),
        ({"max_hold": 40, "at_least_for": 50}, "max_hold=40 .* at_least_for=50"),
        ({"max_hold": float("nan")}, "max_hold"),
    ],
)
def test_a_useless_max_hold_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        locks.lock("a", timeout=30, **options)
