"""Locks that are held elsewhere, locks that are lost, and an assertion that no lock is held."""

import asyncio
import copy
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from .. import clock, validators
from ..engine import protocol, queries
from ..engine.operations import Flow
from ..engine.registry import all_holds
from ..engine.renewer import THREAD_NAME, AsyncRenewer, ThreadRenewer
from ..exceptions import LockError, LockNotAcquired, LockNotOwnedError
from ..identity import SharedOwner, Task
from ..keys import Keys
from ..lock_types import AsyncLock, BaseLock
from ..manager import LockManager, locks
from ..names import check_name, short_repr
from ..text import holder_text, printable, task_text
from ..validators import Seconds

POLL_INTERVAL_SECONDS = 0.02


@contextmanager
def held_elsewhere(
    lock: str | BaseLock,
    /,
    *,
    holder_task_id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    using: str | None = None,
) -> Iterator[BaseLock]:
    """Hold a lock as another holder until the end of ``with``. The lease is renewed.

    The lock can be force-released or lost before the end of ``with``.

    Args:
        lock: The name of a mutex, or a lock object for another lock type. The lock object itself
            does not become the holder. ``locks.semaphore("gpu", 2, weight=2)`` takes the whole
            semaphore.
        holder_task_id: The id of the Celery task that the holder claims to be.
        metadata: The metadata of the holder, as for `LockManager.lock`.
        using: The cache alias, if `lock` is a name. None means ``REDISLOCK_CACHE``.

    Yields:
        The lock of the other holder. Call its `release()` to grant the lock to a waiter.

    Raises:
        LockNotAcquired: The lock is not free.
    """
    if holder_task_id is not None and not isinstance(holder_task_id, str):
        raise TypeError(f"holder_task_id must be a str, got {short_repr(holder_task_id)}")
    if isinstance(lock, str):
        lock = locks.using(using).lock(lock)
    elif isinstance(lock, AsyncLock) or not isinstance(lock, BaseLock):
        raise TypeError(f"lock must be a lock name or a synchronous lock, got {short_repr(lock)}")
    elif using is not None:
        raise TypeError(
            f"using={short_repr(using)} requires a lock name: {lock!r} has its own alias"
        )
    with held_by((None, holder_task_id), lock, metadata) as other:
        yield other


@contextmanager
def held_by(
    task: Task, lock: BaseLock, metadata: Mapping[str, Any] | None = None
) -> Iterator[BaseLock]:
    """Hold a copy of `lock` as a holder that claims to be that task. The copy has no cooldown and
    no `on_lost`. Its lock can be lost before the end of ``with``."""
    other = copy.copy(lock)
    other.on_lost = other.release_on_commit = None
    other.reentrant = False
    other.at_least_for = 0
    other.task = task
    other._shared_owner = SharedOwner()
    if metadata is not None:
        other.metadata = validators.metadata("metadata", metadata)
    if not BaseLock.acquire(other, blocking=False):
        raise not_free(other.name)
    try:
        yield other
    finally:
        with suppress(LockNotOwnedError):
            other.release()


def not_free(name: str) -> LockNotAcquired:
    return LockNotAcquired(
        f"Lock {name!r} cannot be held elsewhere: it is not free", lock_name=name
    )


def lose(name: str, *, using: str | None = None) -> None:
    """Make all holders lose a lock: their leases expire at once, like after a failure.

    This function runs the next renewal of this process immediately. When it returns, `lost` is
    true, `on_lost` was called and `lock_lost` was sent (both in another thread), and `release()`
    raises `LockLost`. Other holders are notified later:

    - a holder with ``auto_renewal=False`` when it releases the lock, or when its lease ends,
    - a holder in another process at its next renewal, within a third of its lease,
    - an asyncio task as soon as its event loop runs. In a coroutine, use `alose()`.

    A waiter acquires the lock within half a second.

    Args:
        name: The lock's name.
        using: The cache alias. None means ``REDISLOCK_CACHE``.

    Raises:
        LockError: The lock is not held.
        RuntimeError: The caller runs in the renewal thread, for example in `on_lost`.
    """
    if threading.current_thread().name == THREAD_NAME:
        raise RuntimeError(
            f"lose({name!r}) was called from the renewal thread, for which it waits. Do not call "
            "it in on_lost."
        )
    manager = locks.using(using)
    for renewer in manager._run(_end_leases(manager._keys, check_name(name))):
        if isinstance(renewer, ThreadRenewer):
            renewer.run_once()
        else:
            renewer.loop.call_soon_threadsafe(renewer.wake)


async def alose(name: str, *, using: str | None = None) -> None:
    """Async version of `lose()`. It also notifies the tasks of this event loop."""
    manager = locks.using(using)
    for renewer in await manager._arun(_end_leases(manager._keys, check_name(name))):
        if isinstance(renewer, ThreadRenewer):
            await asyncio.to_thread(renewer.run_once)
        elif renewer.loop is asyncio.get_running_loop():
            await renewer.run_once()
        else:
            renewer.loop.call_soon_threadsafe(renewer.wake)


def _end_leases(keys: Keys, name: str) -> Flow[list[ThreadRenewer | AsyncRenewer]]:
    """End all leases of a lock, and return the renewers of this process, for which a renewal of
    the lock is due."""
    info = yield from queries.get(keys, name)
    tokens = [holding.stored_token for holding in info.holders] if info else []
    if not tokens:
        raise LockError(f"Lock {name!r} cannot be lost: nobody holds it", lock_name=name)
    lock = keys.of(name)
    for token in tokens:
        yield from protocol.renew(lock, token, 0, "set")
    yield from protocol.force_release(lock, tokens[-1])  # This records the expired holds.
    leases = {hold.lease: None for hold in all_holds()}
    lost = [lease for lease in leases if lease.keys.name == name and lease.token in tokens]
    for lease in lost:
        lease.postpone(0)
    return list({id(lease.renewer): lease.renewer for lease in lost}.values())


def assert_nothing_held(*, using: str | None = None, within: Seconds = 1) -> None:
    """Assert that no lock is held. A queue lock counts as held, and a cooldown does not.

    Args:
        using: The cache alias to check. None means all aliases that can store locks.
        within: The seconds to wait for a renewal thread or a worker that is about to release a
            lock.

    Raises:
        AssertionError: A lock is held. The message names the locks and their holders.
    """
    seconds = validators.at_least("within", within)
    managers = locks.everywhere() if using is None else (locks.using(using),)
    end = clock.now() + seconds  # No test freezes this clock.
    while held := sorted(_holders(managers)):
        if clock.now() >= end:
            raise AssertionError("\n".join(["Locks are still held:", *held]))
        time.sleep(POLL_INTERVAL_SECONDS)


def _holders(managers: tuple[LockManager, ...]) -> Iterator[str]:
    """Return a line for each holder of a lock."""
    for manager in managers:
        try:
            infos = list(manager.active())
        except ImproperlyConfigured:
            if manager is managers[0]:
                raise
            continue
        for info in infos:
            for holding in info.holders if info.state == "held" else ():
                who = " ".join(filter(None, [holder_text(holding), task_text(holding)]))
                queued = ", queued" if holding.metadata.get("queued") is True else ""
                where = f"'{printable(info.name)}' on '{printable(manager.alias)}'"
                yield f"  {where} by {who}{queued}"
