"""A token that a caller chose belongs to one hold. It lets no second caller in. A caller without
the lock cannot end a hold or a wait of another one that chose the same token."""

import asyncio
import contextlib

import pytest

from django_redislock import LockNotOwnedError, locks
from django_redislock.signals import lock_force_released
from tests.lock_tools import free, listening, start, waiting
from tests.servers import Node

TOKEN = "web-1"
NAME = "chosen"


@pytest.fixture(scope="module")
def three_urls():
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Node()).url for _ in range(3)]


@pytest.fixture
def quorum(three_urls, alias_on):
    """Create quorum locks on three servers."""
    aliases = [f"chosen{place}" for place in range(3)]
    for alias, url in zip(aliases, three_urls, strict=True):
        alias_on(url, alias=alias)
    return lambda **options: locks.quorum(NAME, aliases, **options)


PAIRS = {
    "mutex": [lambda **more: locks.lock(NAME, **more)] * 2,
    "semaphore": [lambda **more: locks.semaphore(NAME, 1, **more)] * 2,
    "read and write": [
        lambda **more: locks.read_lock(NAME, **more),
        lambda **more: locks.write_lock(NAME, **more),
    ],
    "lock_many": [lambda **more: locks.lock_many([NAME, "other"], **more)] * 2,
    "quorum": None,
}


@pytest.fixture(params=PAIRS)
def pair(request):
    """Functions that create two locks, which exclude each other."""
    return PAIRS[request.param] or [request.getfixturevalue("quorum")] * 2


def acquire(lock, **arguments):
    """Acquire in another thread, with the token."""
    return start(lambda: lock.acquire(token=TOKEN, **arguments))


def aacquire(lock, **arguments):
    """Acquire in the event loop of another thread, with the token."""
    return start(lambda: asyncio.run(lock.aacquire(token=TOKEN, **arguments)))


@pytest.fixture(params=[acquire, aacquire], ids=["sync", "async"])
def ask(request):
    return request.param


def test_the_token_of_the_holder_lets_nobody_in(pair, ask):
    first, second = pair[0](), pair[1]()
    assert first.acquire(token=TOKEN)

    assert ask(second, blocking=False).result(60) is False
    assert ask(second, blocking_timeout=0.05).result(60) is False
    with pytest.raises(LockNotOwnedError):
        second.release()

    assert first.owned()
    assert not second.owned()
    assert first.token == TOKEN
    first.release()


@pytest.mark.parametrize("pair", ["mutex", "lock_many", "quorum"], indirect=True)
def test_callers_with_the_token_of_the_holder_wait_for_the_release(pair, ask):
    """They have positions of their own. One that gives up ends neither the hold nor a wait."""
    first = pair[0]()
    assert first.acquire(token=TOKEN)
    patient = [start(hold_once, pair[1]()), start(asyncio.run, ahold_once(pair[1]()))]
    waiting(manager_of(first), NAME, 2)

    assert ask(pair[1](), blocking_timeout=0.05).result(60) is False
    assert [each.done() for each in patient] == [False, False]
    assert first.owned()
    first.release()

    assert [each.result(60) for each in patient] == [True, True]
    free(manager_of(first), NAME)


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


def manager_of(lock):
    return locks.using("chosen0") if lock.kind == "quorum" else locks


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
