"""A request that fails leaves the lock object in no reference cycle: the object ends with its last
reference, not at the next garbage collection. Until then, its lock would be renewed."""

import asyncio
import gc
from weakref import ref

import pytest
from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from django_redislock import LockError, locks

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

REQUESTS = [
    *(
        ("lock", method)
        for method in ("acquire", "release", "extend", "reacquire", "locked", "owned")
    ),
    ("semaphore", "acquire"),
    ("lock_many", "acquire"),
    ("lock_many", "release"),
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

    def make(kind="lock_many"):
        argument = {"lock": ["a"], "semaphore": ["a", 1], "lock_many": [["a", "b"]]}[kind]
        return getattr(own_locks, kind)(*argument, timeout=30)

    return make


def fail(function, *arguments):
    """Call a function that fails. Unlike `pytest.raises()`, do not keep the exception."""
    try:
        function(*arguments)
    except (ConnectionError, TimeoutError, ResponseError, LockError):
        return
    raise AssertionError("did not fail")


async def afail(function, *arguments):
    try:
        await function(*arguments)
    except (ConnectionError, TimeoutError, ResponseError, LockError):
        return
    raise AssertionError("did not fail")


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
        await afail(getattr(lock, f"a{method}"), *ARGUMENTS.get(method, []))
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


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_refused_call_does_not_keep_the_lock_object(colour):
    async def use():
        lock = locks.lock("a", timeout=30)
        await afail(lock.arelease)
        await afail(lock.aextend, 10)
        return ref(lock)

    if colour == "async":
        known = asyncio.run(use())
    else:
        lock = locks.lock("a", timeout=30)
        fail(lock.release)
        fail(lock.extend, 10)
        known = ref(lock)
        del lock
    assert known() is None


def test_a_failed_block_does_not_keep_the_lock_object(make, own_server):
    def use():
        lock = make()
        known.append(ref(lock))
        with lock:
            own_server.stop()

    known = []
    fail(use)
    assert known[0]() is None


def test_a_failed_async_block_does_not_keep_the_lock_object(make, own_server):
    async def use():
        lock = make()
        known.append(ref(lock))
        async with lock:
            own_server.stop()

    async def wait():
        await afail(use)
        await asyncio.sleep(0)
        assert known[0]() is None

    known = []
    asyncio.run(wait())


def test_an_error_reply_does_not_keep_the_lock_object(make, own_redis):
    """An error that Redis replies with is first a value, and then raised."""
    lock = make()
    own_redis.config_set("maxmemory", 1)
    fail(lock.acquire)
    known = ref(lock)
    del lock
    assert known() is None
