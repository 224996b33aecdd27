"""A lock token proves who the holder is, so the repr of a public object never contains one."""

import contextlib

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


def raised(error, call):
    with pytest.raises(error) as caught:
        call()
    return caught.value


@pytest.mark.filterwarnings("ignore:.*a quorum of 1")
def test_no_repr_contains_a_lock_token(redis_server, sent):
    lost = locks.lock("lost")
    assert lost.acquire(token=f"{TOKEN}-lost")
    lose("lost")
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
        found = [*kinds, other, in_the_way, *infos, *locks.get_many(["mutex", "task"]).values()]
        found += [locks.page(), locks.queue("mutex"), infos[0].first, infos[0].holder]
        found += [raised(AlreadyRunning, task), raised(LockError, kinds[3].acquire)]
    locks.force_release("written")
    for lock in kinds:
        with contextlib.suppress(LockNotOwnedError):
            lock.release()
    assert waiter.result(60)
    assert locks.force_release("mutex") == 1
    found += [raised(LockLost, lost.release), raised(LockNotOwnedError, lost.release)]
    found += [*kinds, locks, locks.history(), locks.rates(), locks.health(), *sent]
    found += [single_instance, StaleLock("shop.Order", 1, token=2, found=3)]
    found += [AsyncLock(redis.asyncio.Redis(), "asyncio")]

    tokens = {TOKEN} | {holding.token for info in infos for holding in info.holders}
    assert len(tokens) > len(kinds)
    assert {"waited", "acquisition", "error"} <= {name for each in sent for name in each}
    for name in django_redislock.__all__:
        public = getattr(django_redislock, name)
        is_class = isinstance(public, type)
        assert any(each is public or (is_class and isinstance(each, public)) for each in found)
    for each in found:
        assert not [token for token in tokens if token in f"{each!r} {each}"], type(each)
