"""A lock object that ends with its last reference while it holds its lock warns."""

import asyncio
import gc
from contextlib import contextmanager
from weakref import ref

import pytest

from django_redislock import LockLost, locks
from django_redislock.engine import registry
from tests.lock_tools import free, lease_of, start, warnings_of_block
from tests.tools import wait_until


@contextmanager
def no_warning():
    """Fail if the block, or the collection of its garbage, warns about a lock object."""
    with warnings_of_block() as warned:
        yield
    assert not [text for text in warned if "lock object" in text]


@contextmanager
def one_warning(text):
    """Fail if the block does not warn once about a lock object."""
    gc.collect()  # garbage of other tests
    with pytest.warns(ResourceWarning, match=text) as caught:
        yield
    [warning] = [each for each in caught if "lock object" in str(each.message)]
    assert warning.filename == __file__


def test_dropping_a_lock_object_that_holds_the_lock_warns():
    with one_warning("Lock 'a' was not released"):
        locks.lock("a", timeout=0.4).acquire()
    assert locks.get("a") is not None
    free(locks, "a")


def test_a_lock_that_is_released_or_kept_by_another_object_does_not_warn():
    async def use():
        lock = locks.lock("a")
        await lock.aacquire()
        await lock.arelease()
        async with locks.lock("a"):
            pass

    with no_warning():
        locks.lock("a").__enter__().release()
        asyncio.run(use())
    lock = locks.lock("a", reentrant=True)
    lock.acquire()
    with no_warning():
        locks.lock("a", reentrant=True).acquire()
    lock.release()
    assert locks.get("a") is None


def test_a_lost_lock_does_not_warn():
    with no_warning():
        lock = locks.lock("a", auto_renewal=False)
        lock.acquire()
        locks.force_release("a")
        with pytest.raises(LockLost):
            lock.reacquire()
        del lock


def test_a_lease_whose_thread_and_lock_object_are_gone_has_no_holder():
    def hold():
        lock = locks.lock("a", timeout=600)
        lock.acquire()
        return lease_of(lock)

    with pytest.warns(ResourceWarning, match="Lock 'a' was not released"):
        lease = start(hold).result(60)
    wait_until(lambda: not gc.collect() and lease.owner() is None)
    assert registry.holds_of(lease) == []
    assert not registry.should_renew(lease)
    assert locks.force_release("a") == 1


def test_a_lock_object_that_ends_with_the_interpreter_does_not_warn():
    lock = locks.lock("a")
    with lock, no_warning():
        registry._lock_dropped(ref(lock), lambda: True)
        locks.assert_held("a")
