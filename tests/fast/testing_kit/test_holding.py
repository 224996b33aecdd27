"""held_elsewhere() holds a lock as another process would."""

import pytest
from redis.asyncio import Redis

from django_redislock import AsyncLock, Lock, LockError, LockNotOwnedError, locks
from django_redislock.testing import held_elsewhere, lose
from tests.lock_tools import renewed

NAME = "tests:kit"


def test_the_lock_is_held_by_another_until_the_block_ends() -> None:
    with held_elsewhere(NAME, metadata={"by": "cron"}):
        assert locks.get(NAME).metadata == {"by": "cron"}
        with pytest.raises(LockError, match=f"'{NAME}' cannot be held elsewhere"):
            held_elsewhere(NAME).__enter__()
        with pytest.raises(LockNotOwnedError):
            locks.assert_held(NAME)
        assert not locks.lock(NAME, reentrant=True).acquire(blocking=False)
        with pytest.raises(LockNotOwnedError):
            locks.lock(NAME).release()
        assert locks.get(NAME)
    assert locks.get(NAME) is None
    with pytest.raises(ZeroDivisionError), held_elsewhere(NAME, using="django_redis"):
        raise ZeroDivisionError(locks.using("django_redis").get(NAME).token)
    assert locks.get(NAME) is None


def test_a_lock_of_any_kind_can_be_held(redis_server) -> None:
    with held_elsewhere(locks.lock(NAME, timeout=1.5)):
        renewed(locks, NAME)
    with held_elsewhere(locks.semaphore(NAME, 3, weight=2)):
        assert locks.semaphore(NAME, 3).acquire(blocking=False, token="one")
        assert not locks.semaphore(NAME, 3, weight=2).acquire(blocking=False)
        lose(NAME)
    with held_elsewhere(locks.read_lock(NAME)):
        assert not locks.write_lock(NAME).acquire(blocking=False)
    with held_elsewhere(locks.lock_many(["tests:a", "tests:b"])):
        assert not locks.lock("tests:b").acquire(blocking=False)
    with held_elsewhere(Lock(redis_server, NAME, timeout=5)):
        assert not Lock(redis_server, NAME, timeout=5).acquire(blocking=False)


def test_the_lock_object_itself_is_not_the_holder() -> None:
    lock = locks.lock(NAME, at_least_for=60, reentrant=True, on_lost=pytest.fail)
    with held_elsewhere(lock):
        assert not lock.owned()
        lose(NAME)
    assert lock.acquire(blocking=False)
    assert lock.at_least_for == 60
    lock.at_least_for = 0
    locks.force_release(NAME)


@pytest.mark.parametrize(
    ("lock", "options", "error"),
    [
        (7, {}, "lock must be a lock name or a synchronous lock, got 7"),
        ("", {}, "name must not be empty"),
        (NAME, {"holder_task_id": 7}, "holder_task_id must be a str, got 7"),
        (NAME, {"metadata": "cron"}, "metadata must be a mapping with str keys, got str"),
        (NAME, {"using": 7}, "alias must be a str, got 7"),
        (locks.lock(NAME), {"using": "default"}, "using='default' requires a lock name"),
        (AsyncLock(Redis(), NAME), {}, "a synchronous lock"),
    ],
)
def test_invalid_arguments_are_refused(lock, options, error) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        held_elsewhere(lock, **options).__enter__()
    assert locks.get(NAME) is None
