"""A lock object that ends with its last reference while it holds its lock warns."""

import asyncio
import gc
from contextlib import contextmanager

import pytest

from django_redislock import LockLost, locks
from tests.lock_tools import free, warnings_of_block


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
