"""A lock token proves who the holder is, so the repr of a public object never contains one."""

import asyncio
import contextlib
import os

import pytest
import redis
from django.dispatch import Signal

import django_redislock
from django_redislock import (
    AlreadyRunning,
    AsyncLock,
    Lock,
    LockError,
    LockLost,
    LockNotOwnedError,
    StaleLock,
    locks,
    signals,
    single_instance,
)
from django_redislock.testing import conflict, held_elsewhere, lose
from tests.lock_tools import start, waiting

TOKEN = "t0ken"


@single_instance(key="task", on_conflict="raise")
def task():
    """Do nothing."""


@pytest.fixture
def sent():
    """The arguments of all signals, except those that are lock tokens."""
    sent = []

    def receive(signal, **arguments):
        sent.append({k: v for k, v in arguments.items() if k not in ("token", "tokens")})

    all_signals = [each for each in vars(signals).values() if isinstance(each, Signal)]
    for signal in all_signals:
        signal.connect(receive)
    yield sent
    for signal in all_signals:
        signal.disconnect(receive)


def errors():
    lost = locks.lock("lost")
    assert lost.acquire(token=f"{TOKEN}-lost")
    lose("lost")
    yield raised(LockLost, lost.release)
    yield raised(LockNotOwnedError, lost.release)
    lock = locks.lock("again")
    assert lock.acquire(token=f"{TOKEN}-again")
    yield raised(LockError, lock.acquire)
    lock.release()
    with conflict(task):
        yield raised(AlreadyRunning, task)
    yield StaleLock("shop.Order", 1, token=2, found=3)


def raised(error, call):
    with pytest.raises(error) as caught:
        call()
    return caught.value


async def held_async():
    async with redis.asyncio.Redis.from_url(os.environ["REDIS_URL"]) as client:
        lock = AsyncLock(client, "asyncio", timeout=30)
        assert await lock.acquire(token=f"{TOKEN}-asyncio")
        found = [lock, await locks.aget("asyncio"), *[info async for info in locks.aactive()]]
        await lock.release()
    return found


@pytest.mark.filterwarnings("ignore:.*a quorum of 1")
def test_no_repr_contains_a_lock_token(redis_server, sent):
    found = [locks, single_instance, task, *errors(), *asyncio.run(held_async())]
    tokens = {TOKEN}

    kinds = [
        locks.lock("mutex", reentrant=True),
        locks.semaphore("semaphore", 2),
        locks.read_lock("shared"),
        locks.write_lock("written"),
        locks.lock_many(["one", "two"]),
        locks.quorum("quorum", using=["default"]),
        Lock(redis_server, "client", timeout=30),
    ]
    for lock in kinds:
        assert lock.acquire(token=f"{TOKEN}-{lock.kind}-{id(lock)}")
    waiter = start(lambda: locks.lock("mutex").acquire(token=f"{TOKEN}-waiter"))
    waiting(locks, "mutex", 1)
    with held_elsewhere("elsewhere", holder_task_id="5") as other, conflict(task) as in_the_way:
        infos = [*locks.active()]
        tokens |= {holding.token for info in infos for holding in info.holders}
        found += [*kinds, other, in_the_way, *infos, *locks.get_many(["mutex", "task"]).values()]
        found += [locks.get("mutex"), locks.page(), locks.queue("mutex"), locks.rates()]
        found += [infos[0].first, infos[0].holder, infos[0].holders]
        found += [locks.health()]
    locks.force_release("written")
    for lock in kinds:
        with contextlib.suppress(LockNotOwnedError):
            lock.release()
    assert waiter.result(60)
    assert locks.force_release("mutex") == 1
    found += [*kinds, locks.history(), *sent]

    assert len(tokens) > len(kinds)
    assert {"waited", "acquisition", "error"} <= {name for each in sent for name in each}
    for name in django_redislock.__all__:
        public = getattr(django_redislock, name)
        is_class = isinstance(public, type)
        assert any(each is public or (is_class and isinstance(each, public)) for each in found)

    for each in found:
        assert not [token for token in tokens if token in f"{each!r} {each}"], type(each)
