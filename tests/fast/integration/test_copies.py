"""Copies of lock objects, in this process and, by pickle, in others."""

import copy
import os
import pickle

import pytest
import redis

from django_redislock import Lock, LockNotOwnedError, locks


def note(lock):
    """An `on_lost` that pickles."""


def make(**options):
    return locks.semaphore("a", 3, weight=2, **options)


def options_of(lock):
    """Everything that the object knows, apart from its holds and its way to the server."""
    state = {**vars(lock)}
    for internal in ("_holds", "_server", "_shared_owner"):
        state.pop(internal, None)
    return type(lock), state


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_of_a_held_lock_has_its_options_and_is_not_held(copied):
    with make(timeout=7, blocking_timeout=2, metadata={"by": ["x"]}) as lock:
        other = copied(lock)
        assert options_of(other) == options_of(lock)
        for use in (other.release, other.assert_held, other.reacquire):
            with pytest.raises(LockNotOwnedError):
                use()
        assert lock.owned()
    with other:
        assert other.owned()
        assert not lock.owned()


def test_a_lock_pickles_unless_it_is_held():
    lock = make(timeout=7, blocking_timeout=2, metadata={"by": "x"}, on_lost=note)
    found = pickle.loads(pickle.dumps(lock))  # noqa: S301  our own bytes
    assert options_of(found) == options_of(lock)
    with found:
        assert lock.locked()
        assert not lock.owned()
        with pytest.raises(TypeError, match=r"cannot be pickled while it is held.*copy\.copy"):
            pickle.dumps(found)


def test_a_lock_on_a_client_can_be_copied_but_not_pickled():
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as client:
        lock = Lock(client, "a", thread_local=False)
        with lock:
            assert not copy.copy(lock).owned()
        with pytest.raises(TypeError, match=r"its client has connections.*cache alias"):
            pickle.dumps(lock)
