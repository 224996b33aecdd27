"""A lock object ends with its last reference, also after a failed request. If it holds a lock
then, there is a warning."""

import asyncio
import gc
from contextlib import contextmanager, suppress
from weakref import ref

import pytest
from django.db import transaction
from redis.exceptions import ConnectionError, RedisError

from django_redislock import LockError, LockLost, locks
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


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_dropping_a_lock_object_that_holds_the_lock_warns(colour):
    async def acquire():
        await locks.lock("a", timeout=0.4).aacquire()

    with one_warning("Lock 'a' was not released"):
        asyncio.run(acquire()) if colour == "async" else locks.lock("a", timeout=0.4).acquire()
    assert locks.get("a") is not None
    free(locks, "a")


def test_a_lock_object_warns_once():
    with one_warning("'a', 'b' was not released"):
        locks.lock_many(["b", "a"]).acquire()
    assert locks.force_release("a") == locks.force_release("b") == 1
    lock = locks.lock("a", reentrant=True)
    for _ in range(3):
        lock.acquire()
    lock.release()
    with one_warning("'a'"):
        del lock
    assert locks.force_release("a") == 1


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


@pytest.mark.parametrize("expired", [True, False])
def test_a_lost_lock_does_not_warn(expired):
    with no_warning():
        lock = locks.lock("a", timeout=0.1 if expired else 30, auto_renewal=False)
        lock.acquire()
        if not expired:
            locks.force_release("a")
        free(locks, "a")
        with pytest.raises(LockLost):
            lock.reacquire()
        del lock


@pytest.mark.django_db(transaction=True)
def test_a_release_that_is_deferred_to_the_commit_does_not_warn():
    with no_warning(), transaction.atomic():
        lock = locks.lock("a", release_on_commit=True)
        lock.acquire()
        lock.release()
        del lock
        gc.collect()
        assert locks.get("a") is not None
    assert locks.get("a") is None


def test_a_lock_that_could_not_be_released_does_not_warn(own_locks, own_server):
    with no_warning():
        lock = own_locks.lock("a")
        lock.acquire()
        own_server.stop()
        with pytest.raises(ConnectionError):
            lock.release()
        del lock


# After a failed request. The object must be in no reference cycle, or its lock would be renewed
# until the next garbage collection.


@pytest.mark.parametrize("prefix", ["", "a"], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("kind", "name", "method", "args"),
    [
        *(("lock", "a", method, ()) for method in ("acquire", "release", "locked")),
        ("lock", "a", "extend", (10,)),
        *(("lock_many", ["a", "b"], method, ()) for method in ("acquire", "release")),
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_a_failed_request_does_not_keep_the_lock_object(
    own_locks, own_server, kind, name, method, args, prefix
):
    lock = getattr(own_locks, kind)(name, timeout=30)
    if method != "acquire":
        assert await lock.aacquire()
    own_server.stop()
    gc.disable()
    with suppress(RedisError, LockError):  # `pytest.raises()` would keep the exception
        result = getattr(lock, f"{prefix}{method}")(*args)
        if prefix:
            await result
        pytest.fail("did not fail")
    known = ref(lock)
    del lock
    await asyncio.sleep(0)  # the event loop has the error until then
    is_gone = known() is None
    gc.enable()
    assert is_gone
    own_server.start()
    assert getattr(own_locks, kind)(name, blocking=False).acquire(), "its task is no holder"
