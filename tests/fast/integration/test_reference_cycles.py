"""A request that fails leaves the lock object in no reference cycle: the object ends with its last
reference, not at the next garbage collection. Until then, its lock would be renewed."""

import asyncio
import gc
from contextlib import suppress
from itertools import product
from weakref import ref

import pytest
from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from django_redislock import LockError

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

REQUESTS = [
    *product(["lock"], ["acquire", "release", "extend", "locked"]),
    *product(["lock_many"], ["acquire", "release"]),
]
ARGUMENTS = {"extend": [10]}


@pytest.fixture(autouse=True)
def no_garbage_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def make(own_locks):
    """Return a function that makes a lock of a type."""

    def make(kind):
        argument = {"lock": "a", "lock_many": ["a", "b"]}[kind]
        return getattr(own_locks, kind)(argument, timeout=30)

    return make


ERRORS = (ConnectionError, TimeoutError, ResponseError, LockError)


def fail(function, *arguments):
    """Call a function that fails. Unlike `pytest.raises()`, do not keep the exception."""
    with suppress(*ERRORS):
        function(*arguments)
        pytest.fail("did not fail")


@pytest.mark.parametrize(("kind", "method"), REQUESTS)
def test_a_failed_request_does_not_keep_the_lock_object(make, own_server, kind, method):
    lock = make(kind)
    if method != "acquire":
        assert lock.acquire()
    own_server.stop()
    fail(getattr(lock, method), *ARGUMENTS.get(method, []))
    known = ref(lock)
    del lock
    assert known() is None


@pytest.mark.parametrize(("kind", "method"), REQUESTS)
def test_a_failed_async_request_does_not_keep_the_lock_object(make, own_server, kind, method):
    async def use():
        lock = make(kind)
        if method != "acquire":
            assert await lock.aacquire()
        own_server.stop()
        with suppress(*ERRORS):
            await getattr(lock, f"a{method}")(*ARGUMENTS.get(method, []))
            pytest.fail("did not fail")
        known = ref(lock)
        del lock
        await asyncio.sleep(0)  # the event loop has the error until then
        assert known() is None

    asyncio.run(use())


def test_a_dropped_lock_object_does_not_keep_its_thread_from_the_lock(own_locks, own_server):
    lock = own_locks.lock("a", timeout=30)
    assert lock.acquire()
    own_server.stop()
    fail(lock.extend, 10)
    del lock
    own_server.start()
    assert own_locks.lock("a", blocking=False).acquire()
