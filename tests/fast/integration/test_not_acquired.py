"""`LockNotAcquired`: the block did not run. Nothing else is one."""

import pickle

import pytest
from redis import exceptions

from django_redislock import (
    AlreadyRunning,
    LockError,
    LockLost,
    LockNotAcquired,
    locks,
    single_instance,
)
from django_redislock.testing import conflict, held_elsewhere

EVERY_TYPE = {
    "mutex": lambda **options: locks.lock("a", **options),
    "reader": lambda **options: locks.read_lock("a", **options),
    "writer": lambda **options: locks.write_lock("a", **options),
    "semaphore": lambda **options: locks.semaphore("a", 2, weight=2, **options),
    "many": lambda **options: locks.lock_many(["a", "b"], **options),
    "quorum": lambda **options: locks.quorum("a", ["default", "second", "third"], **options),
}


@pytest.fixture(params=EVERY_TYPE)
def make(request):
    """Make a lock of each type."""
    if request.param == "quorum":
        request.getfixturevalue("three_servers")
    return EVERY_TYPE[request.param]


def in_the_way(make):
    """Hold the lock as somebody else, who writes if it is a read-write lock."""
    lock = make()
    return held_elsewhere(locks.write_lock("a") if lock.kind == "readwrite" else lock)


@pytest.mark.parametrize("options", [{"blocking": False}, {"blocking_timeout": 0.05}])
def test_a_block_that_does_not_run(make, options):
    with in_the_way(make), pytest.raises(LockNotAcquired) as caught, make(**options):
        pytest.fail("the block ran")
    assert caught.value.lock_name == "a"
    assert isinstance(caught.value, exceptions.LockError)
    copied = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  our own bytes
    assert (type(copied), str(copied)) == (LockNotAcquired, str(caught.value))
    assert copied.holder == caught.value.holder


async def test_an_async_block_that_does_not_run(make):
    with in_the_way(make), pytest.raises(LockNotAcquired):
        async with make(blocking=False):
            pytest.fail("the block ran")


async def test_a_decorated_function_that_does_not_run(make):
    @make(blocking=False)
    def work():
        pytest.fail("the function ran")

    @make(blocking=False)
    async def awork():
        pytest.fail("the function ran")

    with in_the_way(make):
        with pytest.raises(LockNotAcquired):
            work()
        with pytest.raises(LockNotAcquired):
            await awork()


@pytest.mark.django_db(transaction=True)
def test_a_transaction_that_does_not_begin():
    atomic = locks.atomic("a", blocking=False)
    with held_elsewhere("a"), pytest.raises(LockNotAcquired), atomic:
        pytest.fail("the block ran")


def test_a_loss_is_none():
    with pytest.raises(LockLost) as caught, locks.lock("a"):
        locks.force_release("a")
    assert not isinstance(caught.value, LockNotAcquired)


@pytest.mark.parametrize("other", [locks.lock("a"), locks.semaphore("a", 2)])
def test_misuse_is_none(other):
    """The caller would wait for itself, or uses the name for another lock type."""
    with locks.lock("a"), pytest.raises(LockError) as caught, other:
        pytest.fail("the block ran")
    assert not isinstance(caught.value, LockNotAcquired)


def test_a_call_that_meets_another_instance():
    @single_instance(unique_on=["pk"], on_conflict="raise", timeout=30)
    def sync(pk):
        pytest.fail("the function ran")

    with conflict(sync, 1) as other, pytest.raises(LockNotAcquired) as caught:
        sync(1)
    assert isinstance(caught.value, AlreadyRunning)
    assert (caught.value.name, caught.value.task_id) == (other.name, other.task_id)
    assert 0 < caught.value.expires_in <= 30
