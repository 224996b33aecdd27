"""`LockNotAcquired`: the block did not run, because of which lock, and who holds it."""

import pickle
import re

import pytest
from redis import exceptions

from django_redislock import (
    LockError,
    LockNotAcquired,
    locks,
)
from django_redislock.testing import held_elsewhere
from tests.lock_tools import start, waiting

MAKERS = {
    "mutex": lambda **options: locks.lock("a", **options),
    "reader": lambda **options: locks.read_lock("a", **options),
    "semaphore": lambda **options: locks.semaphore("a", 2, weight=2, **options),
    "many": lambda **options: locks.lock_many(["a", "b"], **options),
    "quorum": lambda **options: locks.quorum("a", ["default", "second", "third"], **options),
}


@pytest.fixture(params=MAKERS)
def make(request):
    """Make a lock of each type."""
    if request.param == "quorum":
        request.getfixturevalue("three_servers")
    return MAKERS[request.param]


async def test_what_does_not_run(make):
    @make(blocking=False)
    def work():
        pytest.fail("the function ran")

    @make(blocking=False)
    async def awork():
        pytest.fail("the function ran")

    lock = make(blocking_timeout=0.05)
    in_the_way = locks.write_lock("a") if lock.kind == "readwrite" else make()
    with held_elsewhere(in_the_way):
        with pytest.raises(LockNotAcquired) as caught, make(blocking=False):
            pytest.fail("the block ran")
        with pytest.raises(LockNotAcquired):
            async with lock:
                pytest.fail("the block ran")
        with pytest.raises(LockNotAcquired):
            work()
        with pytest.raises(LockNotAcquired):
            await awork()
    assert caught.value.lock_name == "a"
    assert isinstance(caught.value, exceptions.LockError)
    copied = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  our own bytes
    assert (type(copied), str(copied)) == (LockNotAcquired, str(caught.value))
    assert copied.holder == caught.value.holder


@pytest.mark.django_db(transaction=True)
def test_a_transaction_that_does_not_begin():
    atomic = locks.atomic("a", blocking=False)
    with held_elsewhere("a"), pytest.raises(LockNotAcquired), atomic:
        pytest.fail("the block ran")


@pytest.mark.parametrize(
    "misuse",
    [locks.lock("a").acquire, locks.semaphore("a", 2).acquire, lambda: locks.force_release("a")],
)
def test_misuse_and_a_loss_are_none(misuse):
    """The caller would wait for itself, or uses the name for another lock type."""
    with pytest.raises(LockError) as caught, locks.lock("a"):
        misuse()
    assert not isinstance(caught.value, LockNotAcquired)


# What is in the way


def test_the_error_names_the_holder_and_counts_the_waiters(hold):
    held = hold("a")
    with pytest.raises(LockError) as caught, locks.lock("a", blocking_timeout=0.1):
        pass
    holder = locks.get("a").holder
    assert caught.value.holder == holder
    expected = rf"Lock 'a' was not acquired within 0\.1 s: held by {holder.host}:{holder.pid} for "
    assert re.fullmatch(expected + r"\d+\.\ds", str(caught.value.message))
    waiter = start(lambda: locks.lock("a").acquire())
    waiting(locks, "a", 1)
    with pytest.raises(LockError, match=", 1 waiting"), locks.lock("a", blocking=False):
        pass
    held.release()
    assert waiter.result(60)
    locks.force_release("a")


def test_the_error_of_several_names_the_lock_that_blocked():
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
