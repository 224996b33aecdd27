"""Locks on existing clients, which replace the locks of redis-py."""

import inspect
import os
from functools import partial

import pytest
import redis
import redis.asyncio

from django_redislock import AsyncLock, Lock, LockError, LockLost, LockNotOwnedError, locks
from tests.lock_fixtures import CORE, DJANGO_REDIS
from tests.lock_tools import hold_of, start
from tests.tools import wait_until


@pytest.fixture
def client():
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as made:
        yield made


def async_client():
    return redis.asyncio.Redis.from_url(os.environ["REDIS_URL"])


# Compatibility with redis-py


@pytest.mark.parametrize(
    ("ours", "theirs"), [(Lock, redis.lock.Lock), (AsyncLock, redis.asyncio.lock.Lock)]
)
@pytest.mark.parametrize("method", ["__init__", "acquire", "release", "extend", "reacquire"])
def test_the_arguments_are_those_of_redis_py(ours, theirs, method):
    def arguments(of):
        parameters = inspect.signature(getattr(of, method)).parameters.values()
        return [(each.name, each.default) for each in parameters][1:]

    wanted = arguments(theirs)
    assert arguments(ours)[: len(wanted)] == wanted


def test_as_the_lock_class_of_a_client(client, settings, alias_on):
    own = alias_on(os.environ["REDIS_URL"])
    del settings.CACHES["own"]["KEY_PREFIX"]
    settings.CACHES = {**settings.CACHES}
    lock = client.lock("a", timeout=10, lock_class=Lock)
    assert isinstance(lock, Lock)
    assert not lock.locked()
    with lock:
        assert lock.locked()
        assert lock.owned()
        assert lock.fence_token > 0
        assert not client.lock("a", blocking=False, lock_class=Lock).acquire()
        assert not client.lock("a", blocking_timeout=0.05, lock_class=Lock).acquire()
        assert lock.extend(100)
        assert lock.reacquire()
        assert own.get("a").token == lock.token, "as a manager without a key prefix sees it"
        assert locks.get("a") is None
    assert not lock.locked()


async def test_as_the_lock_class_of_an_async_client():
    async with async_client() as client:
        lock = client.lock("a", timeout=10, lock_class=AsyncLock)
        async with lock:
            assert await lock.locked()
            assert await lock.owned()
            assert not await client.lock("a", blocking=False, lock_class=AsyncLock).acquire()
            assert await lock.extend(100)
            assert await lock.reacquire()
        assert not await lock.locked()
        assert await lock.acquire(blocking=True, blocking_timeout=5, token="mine")
        assert lock.token == "mine"
        await lock.release()
        with pytest.raises(LockError, match="does not hold it"):
            await lock.release()


# Errors


@pytest.mark.parametrize("method", ["release", "extend", "reacquire"])
def test_misuse_raises_the_errors_of_redis_py(client, method):
    lock = Lock(client, "a")
    misuse = partial(lock.extend, 1) if method == "extend" else getattr(lock, method)
    with pytest.raises(redis.exceptions.LockError, match=f"Cannot {method} lock 'a'"):
        misuse()
    assert lock.acquire()
    client.flushdb()
    with pytest.raises(redis.exceptions.LockNotOwnedError, match="'a': it was lost"):
        misuse()


@pytest.mark.parametrize("of", [Lock, AsyncLock])
def test_what_is_no_client_is_refused(of):
    with pytest.raises(TypeError, match="must be a redis-py client, got <object"):
        of(object(), "a")


def test_raise_on_release_error_can_be_turned_off(client, caplog):
    with pytest.raises(LockLost), Lock(client, "a"):
        client.flushdb()
    with Lock(client, "a", raise_on_release_error=False):
        client.flushdb()
    assert "Lock not released at the end of its block: name='a'" in caplog.text


# Holders


def test_threads_may_share_one(client):
    lock = Lock(client, "a", timeout=1.5, thread_local=False)
    assert start(lock.acquire).result(60), "and the thread has ended"
    before = hold_of(lock).deadline
    wait_until(lambda: hold_of(lock).deadline > before)
    assert start(lambda: lock.token).result(60) == lock.token
    start(lock.release).result(60)
    assert not lock.locked()
    with pytest.raises(LockNotOwnedError):
        lock.release()


# A holder that acquires its lock again through another client of the same server


def ended(function):
    """Run `function`, which acquires a lock twice. It could wait forever, so it runs in a thread
    of its own."""
    start(function).result(30)


@pytest.fixture(params=["two clients", "client, alias", "backends"])
def ways(request, settings):
    """Two functions that make the lock "a", through two clients of one server."""
    url = os.environ["REDIS_URL"]
    entry = {"BACKEND": CORE, "LOCATION": url}
    other = {**entry, "BACKEND": DJANGO_REDIS}
    settings.CACHES = {**settings.CACHES, "unprefixed": entry, "other": other}
    with redis.Redis.from_url(url) as first, redis.Redis.from_url(url) as second:
        yield {
            "two clients": (partial(Lock, first), partial(Lock, second)),
            "client, alias": (partial(Lock, first), locks.using("unprefixed").lock),
            "backends": (locks.using("unprefixed").lock, locks.using("other").lock),
        }[request.param]


def test_a_holder_is_refused_or_enters_its_lock_again(ways):
    def refused():
        first, second = [make("a") for make in ways]
        with first:
            with pytest.raises(LockError, match="already held by this"):
                second.acquire()
            assert second.acquire(blocking_timeout=0.05) is False
        with second, pytest.raises(LockError, match="already held by this"), first:
            pytest.fail("the block ran")

    def nested():
        first, second = [make("a", reentrant=True) for make in ways]
        with first:
            with second:
                assert second.fence_token == first.fence_token
                assert second.owned()
                assert second.extend(60) is True
            assert first.owned()
        assert not first.locked()
        # The last release counts, whichever it is.
        assert first.acquire()
        assert second.acquire()
        first.release()
        second.assert_held()
        assert second.owned()
        second.release()
        assert not second.locked()

    ended(refused)
    ended(nested)


# Each lock type


def test_a_lock_that_is_entered_by_two_clients_in_turn_is_one_hold(alias_on, own_server):
    one, other = (
        alias_on(own_server.url, alias=name).lock("a", reentrant=True) for name in ("own", "twin")
    )
    for lock in (one, other, one, other):
        assert lock.acquire(blocking=False)
    assert one.token == other.token
    for lock in (one, other, one, other):
        assert lock.locked()
        lock.release()
    assert not one.locked()


def refused(outer, inner):
    def nested():
        with outer, pytest.raises(LockError, match="already held by this"):
            inner.acquire()

    ended(nested)


def allowed(outer, inner):
    def nested():
        with outer, inner:
            assert outer.owned()
            assert inner.owned()

    ended(nested)


def test_each_lock_type_is_entered_again_or_refused():
    other = locks.using("django_redis")  # the same database, with the same keys
    refused(locks.semaphore("a", 1), other.semaphore("a", 1))
    allowed(locks.semaphore("a", 2), other.semaphore("a", 2))
    allowed(locks.semaphore("a", 1), other.semaphore("a", 1, reentrant=True))
    refused(locks.semaphore("a", 3, weight=2), other.semaphore("a", 3, weight=2))
    allowed(locks.read_lock("a"), other.read_lock("a"))
    refused(locks.read_lock("a"), other.write_lock("a"))
    refused(locks.write_lock("a"), other.read_lock("a"))
    allowed(locks.write_lock("a"), other.read_lock("a", reentrant=True))
    refused(locks.lock_many(["b", "c"]), other.lock_many(["a", "b"]))
    refused(locks.lock("b"), other.lock_many(["a", "b"]))
    refused(locks.lock_many(["a", "b"]), other.lock("b"))
    allowed(locks.lock("b"), other.lock_many(["a", "b", "c"], reentrant=True))
    assert not list(locks.active())


# Who is not refused


def test_a_lock_of_the_same_name_elsewhere_is_another_lock(alias_on, own_server):
    first = alias_on(own_server.url, alias="first")
    second = alias_on(own_server.url[:-1] + "1", alias="second")  # another database
    allowed(first.lock("a"), second.lock("a"))
    allowed(first.lock("a", reentrant=True), second.lock("a", reentrant=True))
