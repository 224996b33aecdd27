"""Locks that somebody else holds, and locks that are lost."""

import asyncio
import copy
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from .. import values
from ..engine import flows
from ..engine.hold import Holds
from ..engine.lease import held_here
from ..engine.ops import Flow
from ..engine.renewal import THREAD, Book, LoopBook, ThreadBook, loop_of
from ..exceptions import LockError, LockNotOwnedError
from ..holder import Anybody, Renewal, Task, info_text
from ..info import LockInfo
from ..keys import LockKeys
from ..manager import locks
from ..names import shown
from ..primitives import AsyncLock, BaseLock


@contextmanager
def held_elsewhere(
    lock: str | BaseLock,
    /,
    *,
    holder_task_id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    using: str | None = None,
) -> Iterator[BaseLock]:
    """Have somebody else hold a lock, who renews it, until the end of ``with``.

    lock
        A name, for its mutex; or a lock object for another kind, which itself holds nothing by
        it: ``locks.semaphore("gpu", 2, weight=2)`` is all of a semaphore.
    holder_task_id
        The id of the Celery task that the holder says it is.
    metadata
        What the holder tells of itself, as of `LockManager.lock`.
    using
        The alias of ``CACHES``, for a name (None: ``REDISLOCK_CACHE``).

    Gives the lock as its holder has it: `release()` lets whoever waits have it before the end. It
    may be taken from it by force, or be lost, meanwhile.

    Raises `LockError` if the lock is not free.
    """
    if holder_task_id is not None and not isinstance(holder_task_id, str):
        raise TypeError(f"holder_task_id must be a str, got {shown(holder_task_id)}")
    other = of_another(_lock(lock, using), (None, holder_task_id))
    if metadata is not None:
        other.metadata = values.metadata("metadata", metadata)
    with held(other):
        yield other


def _lock(lock: object, using: str | None) -> BaseLock:
    if isinstance(lock, str):
        return locks.using(using).lock(lock)
    if not isinstance(lock, BaseLock) or isinstance(lock, AsyncLock):
        raise TypeError(f"lock must be a name, or a lock of a sync client, got {shown(lock)}")
    if using is not None:
        raise TypeError(f"using={using!r} is for a name: {lock!r} knows its alias")
    return lock


def of_another(lock: BaseLock, task: Task) -> BaseLock:
    """A copy of `lock`, to be held by another than its caller, who says that it is that task. It
    is released at once when it is, and nobody is told if it is lost."""
    other, somebody = copy.copy(lock), Anybody()
    other._holds = Holds()
    other.on_lost, other.reentrant, other.release_on_commit, other.at_least_for = (
        None,
        False,
        None,
        0,
    )

    def say(renewed: Renewal) -> str:
        about = other.on_conflict
        return info_text(other.metadata, renewed=renewed, on_conflict=about, task=task)

    other._info = say  # type: ignore[method-assign]
    other._owner = lambda: somebody  # type: ignore[method-assign]
    return other


@contextmanager
def held(lock: BaseLock) -> Iterator[None]:
    """Hold it, if nobody has it; it may go before the end."""
    if not BaseLock.acquire(lock, blocking=False):
        raise not_free(lock.name)
    try:
        yield
    finally:
        with suppress(LockNotOwnedError):
            lock.release()


def not_free(name: str) -> LockError:
    return LockError(f"Lock {name!r} can't be held elsewhere: it is not free", lock_name=name)


def lose(name: str, *, using: str | None = None) -> None:
    """Take a lock from all who hold it as a failure would: their leases are over at once.

    As in production the holder learns of it by its next renewal, and this has its process do that
    now: on return `lost` is true, `on_lost` was called and `lock_lost` sent, all from another
    thread, and `release` raises `LockLost`. A holder that does not renew (`auto_renewal=False`)
    learns of it by its release, or at the end of its lease; one in another process in a third of
    its lease; an asyncio task as soon as its loop runs: in a coroutine use `alose`. Who waits is
    let in within half a second.

    `using` is the alias of ``CACHES``. Raises `LockError` if nobody holds the lock, and
    `RuntimeError` in what the renewal calls, such as `on_lost`: it would wait for itself.
    """
    if threading.current_thread().name == THREAD:
        raise RuntimeError(
            f"lose({name!r}) waits for the renewal, which called it: not in on_lost"
        )
    manager = locks.using(using)
    tokens = _tokens(name, manager.get(name))
    manager._run(_end(manager._keys.of(name), tokens))
    for book in _books(name, tokens):
        if isinstance(book, ThreadBook):
            book.go_round()
        else:
            _wake(book)


async def alose(name: str, *, using: str | None = None) -> None:
    """See lose(); on return the tasks of this event loop have learned of it, too."""
    manager = locks.using(using)
    tokens = _tokens(name, await manager.aget(name))
    await manager._arun(_end(manager._keys.of(name), tokens))
    for book in _books(name, tokens):
        if isinstance(book, ThreadBook):
            await asyncio.to_thread(book.go_round)
        elif isinstance(book, LoopBook) and loop_of(book) is asyncio.get_running_loop():
            await book.go_round()
        else:
            _wake(book)


def _tokens(name: str, info: LockInfo | None) -> list[str]:
    tokens = [holding.token for holding in info.holders] if info else []
    if not tokens:
        raise LockError(f"Lock {name!r} can't be lost: nobody holds it", lock_name=name)
    return tokens


def _end(keys: LockKeys, tokens: Iterable[str]) -> Flow[None]:
    token = ""
    for token in tokens:
        yield from flows.renew(keys, token, 0, "set")
    yield from flows.force_release(keys, token)  # who is over is noted; this one is by now


def _books(name: str, tokens: Iterable[str]) -> list[Book]:
    """Those that renew what this process had of it, and are to do so at once."""
    leases = [lease for lease in held_here() if lease.keys.name == name and lease.token in tokens]
    for lease in leases:
        lease.put_off(0)
    return list({id(lease.book): lease.book for lease in leases}.values())


def _wake(book: Book) -> None:
    if loop := loop_of(book):
        loop.call_soon_threadsafe(book.wake)
