"""Locks on existing clients, which replace the locks of redis-py."""

import asyncio
import gc
import inspect
import os
import time
import weakref
from functools import partial

import pytest
import redis
import redis.asyncio

from django_redislock import AsyncLock, Lock, LockError, LockLost, LockNotOwnedError, locks
from django_redislock.engine.runners import run
from django_redislock.lock_types import base
from tests.lock_tools import hold_of, start
from tests.tools import wait_until


@pytest.fixture
def client(request):
    decode = getattr(request, "param", False)
    with redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=decode) as made:
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


@pytest.mark.parametrize("client", [False, True], ids=["bytes", "str"], indirect=True)
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


async def test_arguments_are_passed_as_to_redis_py(client):
    lock = Lock(client, "a", 10, 0.2, False, 3)
    assert (lock.timeout, lock.sleep, lock.blocking, lock.blocking_timeout) == (10, 0.2, False, 3)
    assert lock.redis is client
    assert lock.acquire(0.1, True, 5, b"mine")
    assert lock.token == "mine"
    lock.release()
    with Lock(redis=client, name="a", timeout=10) as lock:
        assert lock.redis is client
    async with async_client() as client, AsyncLock(redis=client, name="a") as lock:
        assert await lock.owned()


@pytest.mark.parametrize("lock_class", [Lock, redis.lock.Lock], ids=["ours", "redis-py"])
def test_blocking_timeout_is_ignored_without_blocking_as_in_redis_py(client, lock_class):
    with lock_class(client, "a", timeout=30):
        began = time.monotonic()
        other = lock_class(client, "a", blocking=False, blocking_timeout=30)
        assert not other.acquire()
        assert not other.acquire(blocking_timeout=30)
        assert not lock_class(client, "a").acquire(blocking=False, blocking_timeout=30)
        assert time.monotonic() - began < 10


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_name_is_the_same_lock_with_any_client_encoding(encoding):
    url, name = os.environ["REDIS_URL"], "Müller"
    options = {"encoding": encoding, "single_connection_client": True}

    async def is_free():
        async with redis.asyncio.Redis.from_url(url, **options) as client:
            return await AsyncLock(client, name, blocking=False).acquire()

    with redis.Redis.from_url(url) as usual, Lock(usual, name):
        assert not asyncio.run(is_free())
        with redis.Redis.from_url(url, **options) as client:
            assert not Lock(client, name, blocking=False).acquire()


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


def test_raise_on_release_error_can_be_turned_off(client, caplog):
    with pytest.raises(LockLost), Lock(client, "a"):
        client.flushdb()
    with Lock(client, "a", raise_on_release_error=False):
        client.flushdb()
    assert "Lock not released at the end of its block: name='a'" in caplog.text
    with (
        pytest.raises(redis.exceptions.LockError, match="was not acquired within 0 s"),
        Lock(client, "a"),
        Lock(client, "a", blocking_timeout=0, raise_on_release_error=False),
    ):
        pass


async def test_a_client_of_the_other_kind_is_refused(client):
    async with async_client() as other:
        for lock_class, wrong in ((Lock, "redis://127"), (AsyncLock, client), (Lock, other)):
            with pytest.raises(TypeError, match="client"):
                lock_class(wrong, "a")
        with pytest.raises(TypeError, match="async with"), AsyncLock(other, "a"):
            pass
        with pytest.raises(TypeError, match=r"redis\.asyncio"):
            await Lock(client, "a").aacquire()


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


def test_a_failed_acquisition_does_not_affect_another_thread(client, monkeypatch):
    def fail_as_another_gets_it(client, flow):
        monkeypatch.setattr(base, "run", run)
        assert start(lock.acquire).result(60)
        raise redis.exceptions.ConnectionError

    lock = Lock(client, "a", thread_local=False)
    monkeypatch.setattr(base, "run", fail_as_another_gets_it)
    with pytest.raises(redis.exceptions.ConnectionError):
        lock.acquire()
    assert lock.owned()
    lock.release()


def test_a_refused_acquisition_keeps_no_client_alive(client):
    def refused():
        other = redis.Redis.from_url(os.environ["REDIS_URL"])
        assert not other.lock("a", blocking=False, lock_class=Lock).acquire()
        return weakref.ref(other.connection_pool)

    with Lock(client, "a"):
        pools = [refused() for _ in range(3)]
        gc.collect()
        assert [pool() for pool in pools] == [None] * 3


async def test_an_aborted_task_ends_with_the_loss_although_the_release_raises():
    options = {"timeout": 1, "on_lost": "abort", "raise_on_release_error": False}

    async def lose():
        async with async_client() as client, AsyncLock(client, "a", **options):
            await client.flushdb()
            await asyncio.Event().wait()

    with pytest.raises(LockLost):
        await asyncio.create_task(lose())
