"""Copies of lock objects, in this process and, by pickle, in others."""

import copy
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
import redis.asyncio

from django_redislock import AsyncLock, Lock, LockNotOwnedError, locks
from django_redislock.lock_types import Mutex
from tests.lock_tools import start


def note(lock):
    """An `on_lost` that pickles."""


class Subclass(Mutex):
    """A lock type of a project."""


MAKERS = {
    "of an alias": lambda **options: locks.using("django_redis").lock("a", **options),
    "reader": lambda **options: locks.read_lock("a", **options),
    "semaphore": lambda **options: locks.semaphore("a", 3, weight=2, **options),
    "many": lambda **options: locks.lock_many(["a", "b"], **options),
    "quorum": lambda **options: locks.quorum("a", ["default", "second", "third"], **options),
    "subclass": lambda **options: Subclass(locks._server, "a", **options),
}


@pytest.fixture
def client():
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as made:
        yield made


@pytest.fixture(params=MAKERS)
def make(request):
    if request.param == "quorum":
        request.getfixturevalue("three_servers")
    return MAKERS[request.param]


@pytest.fixture(params=[copy.copy, copy.deepcopy])
def copied(request):
    return request.param


def options_of(lock):
    """Everything that the object knows, apart from its holds and its way to the server."""
    state = {**vars(lock)}
    for internal in ("_holds", "_server", "_servers", "_shared_owner"):
        state.pop(internal, None)
    return type(lock), state


def test_a_copy_of_a_held_lock_has_its_options_and_is_not_held(make, copied):
    with make(timeout=7, blocking_timeout=2, metadata={"by": ["x"]}) as lock:
        other = copied(lock)
        assert options_of(other) == options_of(lock)
        assert (other.metadata["by"] is lock.metadata["by"]) is (copied is copy.copy)
        assert other.token is None
        assert not other.lost
        for use in (other.release, other.assert_held, other.reacquire):
            with pytest.raises(LockNotOwnedError):
                use()
        assert lock.owned()
    with other:
        assert other.owned()
        assert not lock.owned()


def test_a_copy_of_a_lock_on_a_client_is_not_held(client, copied):
    lock = Lock(client, "a", thread_local=False, metadata={"by": "x"})
    assert options_of(copied(lock)) == options_of(lock)
    assert start(lock.acquire).result(60)
    other = copied(lock)
    assert other.acquire(blocking=False) is False
    with pytest.raises(LockNotOwnedError):
        other.release()
    lock.release()


async def test_a_copy_of_an_async_lock(copied):
    async with redis.asyncio.Redis.from_url(os.environ["REDIS_URL"]) as client:
        async with AsyncLock(client, "a") as lock:
            other = copied(lock)
            with pytest.raises(LockNotOwnedError):
                await other.release()
            with pytest.raises(TypeError, match="AsyncLock where it is used"):
                pickle.dumps(lock)
        async with other:
            assert await other.owned()


@pytest.mark.django_db(transaction=True)
def test_a_copy_of_a_transaction(copied):
    atomic = locks.atomic("a", timeout=7)
    with atomic as lock:
        other = copied(atomic)
        with pytest.raises(IndexError):  # it was not entered
            other.__exit__(None, None, None)
        lock.assert_held()
    for each in (other, pickle.loads(pickle.dumps(other))):  # noqa: S301  our own bytes
        with each as lock:
            assert lock.owned()
            assert lock.timeout == 7


# pickle


def test_an_unheld_lock_pickles(make):
    lock = make(timeout=7, blocking_timeout=2, metadata={"by": "x"}, on_lost=note)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        found = pickle.loads(pickle.dumps(lock, protocol))  # noqa: S301  our own bytes
        assert options_of(found) == options_of(lock)
    with found:
        assert found.owned()
        assert lock.locked()
        assert not lock.owned()


def test_a_held_lock_does_not_pickle(make):
    with make() as lock:
        with pytest.raises(TypeError, match=r"cannot be pickled while it is held.*copy\.copy"):
            pickle.dumps(lock)
        pickle.dumps(copy.copy(lock))
        with ThreadPoolExecutor(1) as pool, pytest.raises(TypeError, match="while it is held"):
            pool.submit(pickle.dumps, lock).result()
    pickle.dumps(lock)


def test_a_manager_pickles_but_not_a_lock_on_a_client(client):
    manager = pickle.loads(pickle.dumps(locks.using("django_redis")))  # noqa: S301  our own bytes
    assert manager.alias == "django_redis"
    assert manager.get("a") is None
    with pytest.raises(TypeError, match=r"its client has connections.*cache alias"):
        pickle.dumps(Lock(client, "a"))
