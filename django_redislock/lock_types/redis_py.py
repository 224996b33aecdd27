"""A mutex on any redis-py client, for ``lock_class=`` of redis-py."""

import inspect
from collections.abc import Coroutine
from typing import Any, Literal, Unpack

from asgiref.sync import markcoroutinefunction

from .. import validators
from ..backends import ClientServer
from ..identity import SharedOwner
from ..redaction import without_secrets
from ..validators import Seconds
from .mutex import Mutex
from .options import MoreOptions


class Lock(Mutex):
    """A mutex on a redis-py client, with the arguments of redis-py's own Lock.

    >>> client.lock("invoice:42", timeout=30, lock_class=Lock)

    Its keys begin with ``REDISLOCK_PREFIX``. So it is the same lock as ``locks.lock()`` with a
    cache alias on the same server and database, if that alias has no ``KEY_PREFIX``.

    Args:
        redis: A synchronous redis-py client.
        name: The lock's name.
        timeout: The lease in seconds. None means ``REDISLOCK_TIMEOUT``. Unlike the lease of
            redis-py's Lock, it is renewed while the holder runs, unless `auto_renewal` is False.
        sleep: Not used, because waiters are notified.
        blocking: Whether `acquire()` waits if the lock is not free.
        blocking_timeout: The maximum wait in seconds. None waits without a limit.
        thread_local: If False, all threads that share the object count as one holder. It cannot be
            combined with `reentrant`, `release_on_commit` or ``on_lost="abort"``.
        raise_on_release_error: If False, the end of ``with`` logs that the lock was lost, and does
            not raise `LockLost`.
        **options: Further options of `LockManager.lock`.
    """

    _of_asyncio = False

    def __init__(
        self,
        redis: Any,
        name: str,
        timeout: Seconds | None = None,
        sleep: Seconds = 0.1,
        blocking: bool = True,
        blocking_timeout: Seconds | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
        **options: Unpack[MoreOptions],
    ) -> None:
        validators.check_options(type(self).__name__, options, MoreOptions.__optional_keys__)
        _check_client(redis, type(self)._of_asyncio)
        server = ClientServer(redis)
        super().__init__(
            lambda: server,
            name,
            timeout=timeout,
            blocking=blocking,
            blocking_timeout=blocking_timeout,
            **options,
        )
        self.redis = redis
        self.sleep = validators.wait("sleep", sleep)
        self.thread_local = validators.flag("thread_local", thread_local)
        self.raise_on_release_error = validators.flag(
            "raise_on_release_error", raise_on_release_error
        )
        self._shared_owner = None if thread_local else SharedOwner()
        needs_one = self.on_lost == "abort" or self.reentrant or self.release_on_commit
        if self._shared_owner and needs_one:
            raise ValueError(
                "thread_local=False cannot be combined with on_lost='abort', reentrant=True or "
                "release_on_commit, because these need to know which thread holds the lock"
            )

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            f"Lock {self.name!r} cannot be pickled, because its client has connections of this "
            "process. Pickle a lock of a cache alias, such as locks.lock(), or create the "
            f"{type(self).__name__} where it is used."
        )

    def acquire(  # type: ignore[override]
        self,
        sleep: Seconds | None = None,
        blocking: bool | None = None,
        blocking_timeout: Seconds | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquire the lock, as `BaseLock.acquire()` does. `sleep` is not used."""
        validators.wait("sleep", sleep)
        return super().acquire(blocking, blocking_timeout, token)

    def _check_wait(self, blocking: bool, blocking_timeout: float | None) -> None:
        """Accept both, because redis-py ignores `blocking_timeout` if `blocking` is False."""


class AsyncLock(Lock):
    """A mutex on a ``redis.asyncio`` client. Its methods are coroutines.

    >>> async with client.lock("invoice:42", timeout=30, lock_class=AsyncLock):
    """

    _of_asyncio = True

    @markcoroutinefunction
    def acquire(  # type: ignore[override]
        self,
        blocking: bool | None = None,
        blocking_timeout: Seconds | None = None,
        token: str | bytes | None = None,
    ) -> Coroutine[Any, Any, bool]:
        """Async version of `Lock.acquire()`."""
        return self.aacquire(blocking, blocking_timeout, token)

    @markcoroutinefunction
    def release(self) -> Coroutine[Any, Any, None]:  # type: ignore[override]
        """Async version of `Lock.release()`."""
        return self.arelease()

    @markcoroutinefunction
    def extend(  # type: ignore[override]
        self, additional_time: Seconds, replace_ttl: bool = False
    ) -> Coroutine[Any, Any, Literal[True]]:
        """Async version of `Lock.extend()`."""
        return self.aextend(additional_time, replace_ttl)

    @markcoroutinefunction
    def reacquire(self) -> Coroutine[Any, Any, Literal[True]]:  # type: ignore[override]
        """Async version of `Lock.reacquire()`."""
        return self.areacquire()

    @markcoroutinefunction
    def locked(self) -> Coroutine[Any, Any, bool]:  # type: ignore[override]
        """Async version of `Lock.locked()`."""
        return self.alocked()

    @markcoroutinefunction
    def owned(self) -> Coroutine[Any, Any, bool]:  # type: ignore[override]
        """Async version of `Lock.owned()`."""
        return self.aowned()

    def __enter__(self) -> "AsyncLock":
        raise TypeError("AsyncLock supports 'async with', not 'with'")


def _check_client(client: Any, of_asyncio: bool) -> None:
    execute = getattr(client, "execute_command", None)
    if execute is None:
        raise TypeError(f"redis must be a redis-py client, got {without_secrets(repr(client))}")
    if inspect.iscoroutinefunction(execute) != of_asyncio:
        advice = (
            "AsyncLock needs a redis.asyncio client. Use Lock with a synchronous client"
            if of_asyncio
            else "Lock needs a synchronous client. Use AsyncLock with a redis.asyncio client"
        )
        raise TypeError(f"{advice}, got {without_secrets(repr(client))}")
