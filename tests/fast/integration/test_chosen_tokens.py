"""A token that a caller chose belongs to one hold. It lets no second caller in. A caller without
the lock cannot end a hold or a wait of another one that chose the same token."""

import asyncio
from functools import partial

import pytest

from django_redislock import LockNotOwnedError, locks
from django_redislock.signals import lock_force_released
from tests.lock_tools import free, listening, start, waiting

TOKEN = "web-1"
NAME = "chosen"

PAIRS = {
    "mutex": [lambda: locks.lock(NAME)] * 2,
    "read and write": [lambda: locks.read_lock(NAME), lambda: locks.write_lock(NAME)],
    "lock_many": [lambda: locks.lock_many([NAME, "other"])] * 2,
    "quorum": [lambda: locks.quorum(NAME, ["default", "second", "third"])] * 2,
}
"""Functions that create two locks, which exclude each other."""


def hold_once(lock):
    assert lock.acquire(token=TOKEN)
    is_owned = lock.owned() and lock.token == TOKEN
    lock.release()
    return is_owned


async def ahold_once(lock):
    assert await lock.aacquire(token=TOKEN)
    is_owned = await lock.aowned() and lock.token == TOKEN
    await lock.arelease()
    return is_owned


@pytest.mark.parametrize("makers", PAIRS.values(), ids=PAIRS)
def test_callers_with_the_token_of_the_holder_wait_for_the_release(three_servers, makers):
    """They have positions of their own. One that gives up ends neither the hold nor a wait."""
    first, second, third, impatient = (makers[number > 0]() for number in range(4))
    assert first.acquire(token=TOKEN)
    patient = [start(hold_once, second), start(asyncio.run, ahold_once(third))]
    waiting(locks, NAME, 2)

    for options in ({"blocking": False}, {"blocking_timeout": 0.05}):
        asking = start(partial(impatient.acquire, token=TOKEN, **options))
        assert asking.result(60) is False
        assert asyncio.run(impatient.aacquire(token=TOKEN, **options)) is False
    with pytest.raises(LockNotOwnedError):
        impatient.release()
    assert [each.done() for each in patient] == [False, False]
    assert first.owned()
    assert first.token == TOKEN
    first.release()

    assert [each.result(60) for each in patient] == [True, True]
    free(locks, NAME)


# What users see of a chosen token


def test_holders_with_the_same_token_are_released_together_or_one_by_one():
    one, two, three = (locks.semaphore(NAME, 3) for _ in range(3))
    for each in (one, two):
        assert each.acquire(token=TOKEN)
    assert three.acquire(token=f"{TOKEN}-b")
    first, second, third = locks.get(NAME).holders
    assert [first.token, second.token, third.token] == [TOKEN, TOKEN, f"{TOKEN}-b"]
    assert len({first.stored_token, second.stored_token, third.stored_token}) == 3

    assert locks.force_release(NAME, first.stored_token) == 1
    assert [each.owned() for each in (one, two, three)] == [False, True, True]
    assert one.acquire(blocking=False, token=TOKEN)
    released = []
    with listening(lock_force_released, lambda **sent: released.append(sent["tokens"])):
        assert locks.force_release(NAME, TOKEN) == 2
    assert released == [(TOKEN, TOKEN)]
    assert three.owned()
    three.release()


def test_a_lost_hold_is_not_owned_because_another_holder_has_its_token():
    first, second = (locks.lock(NAME, auto_renewal=False) for _ in range(2))
    assert first.acquire(token=TOKEN)
    locks.force_release(NAME)
    assert second.acquire(token=TOKEN)
    assert not first.owned()
    with pytest.raises(LockNotOwnedError):
        first.extend(5)
    with pytest.raises(LockNotOwnedError):
        first.release()
    assert second.owned()
    second.release()
