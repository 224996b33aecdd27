"""What a caller of `locks.get_or_set()` does if the cache has no fresh value.

A value has a read-write lock. The caller that computes it is the writer. The others wait as
readers, one for each process, so that all of them are granted the lock at the same moment: when
the value is stored.
"""

import asyncio
import inspect
import logging
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar, cast

from django.core.cache import caches
from django.core.cache.backends.locmem import LocMemCache
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    RedisError,
)

from . import clock, validators
from .exceptions import LockError, LockNotAcquired, LockNotOwnedError
from .identity import caller
from .names import digest_of, fit_name, short_repr
from .text import error_text
from .validators import Seconds

if TYPE_CHECKING:
    from .lock_types import ReadLock
    from .manager import LockManager

T = TypeVar("T")

logger = logging.getLogger("django_redislock")

WITH_EXPIRY = "django_redislock.with_expiry"
"""The first item of a list that is stored instead of a value: when the value expires, and the
value. It is a list, because serializers such as JSON and msgpack return a tuple as a list."""

INVALIDATION_TIMEOUT_SECONDS = 3600
"""A computation that takes longer may not notice that its value was invalidated."""

STALE_REPLY_SECONDS = 0.5
"""How long a caller that has a stale value waits for a reply of the locks' server, which may
hang."""

LOG_INTERVAL_SECONDS = 5
"""A process logs that a server is away this often at most."""

MISSING: Any = object()
"""What a cache returns if it has no value."""


class CacheOptions(TypedDict, total=False):
    """The options of `LockManager.get_or_set`, which describes them."""

    cache: str
    stale: Seconds
    blocking_timeout: Seconds | None
    lease: Seconds | None
    version: int | None


class Wanted(NamedTuple):
    """A value that a caller wants, described by the arguments of `LockManager.get_or_set`."""

    manager: "LockManager"
    key: str
    default: Any
    timeout: Seconds | None
    cache: str
    version: int | None
    options: Mapping[str, Any]


class Found(NamedTuple):
    """A value that was found in the cache."""

    value: Any
    is_fresh: bool


def found_in(stored: Any) -> Found | None:
    """Return what was read from the cache, or None if there is no value."""
    if stored is MISSING:
        return None
    if not isinstance(stored, list) or len(stored) != 3:
        return Found(stored, is_fresh=True)
    mark, expires_at, value = stored
    if not isinstance(mark, str) or mark != WITH_EXPIRY:
        return Found(stored, is_fresh=True)
    return Found(value, is_fresh=time.time() < expires_at)


class Limits:
    """The valid options of a value that are numbers of seconds.

    Args:
        timeout: The seconds until the value expires. None means never.
        options: The other options of `LockManager.get_or_set`.
    """

    def __init__(self, timeout: Seconds | None, options: Mapping[str, Any]) -> None:
        validators.check_options("get_or_set", options, CacheOptions.__annotations__)
        self.timeout = None if timeout is None else validators.seconds("timeout", timeout)
        self.stale = validators.at_least("stale", options.get("stale", 0))
        lease = options.get("lease")
        self.lease = None if lease is None else validators.lease("lease", lease)
        limit = options.get("blocking_timeout")
        self.blocking_timeout = validators.wait("blocking_timeout", limit)
        if self.timeout is not None and self.timeout <= 0:
            raise ValueError(
                "timeout must be positive, or None for a value that never expires, got "
                f"{short_repr(timeout)}"
            )
        if self.timeout is None and self.stale:
            raise ValueError(
                f"stale={self.stale:g} cannot be used with timeout=None, because the value never "
                "expires. Omit one of the two."
            )


# Sync and async code share the coroutines of `Miss`. They differ in how they make a call and wait.


class SyncCalls:
    """The calls of synchronous code. They never suspend a coroutine."""

    is_async = False
    event: type[Any] = threading.Event

    def place(self) -> object:
        """Return where callers wait for each other. A forked child is another place."""
        return os.getpid()

    def may_wait(self) -> bool:
        """Return whether this thread may wait: that of an event loop may not."""
        return not caller()[1]

    async def wait(self, event: threading.Event, seconds: float | None) -> None:
        event.wait(seconds)

    async def call(self, target: Any, method: str, *args: Any) -> Any:
        return getattr(target, method)(*args)


class AsyncCalls:
    """The calls of async code: of the methods whose names begin with ``a``."""

    is_async = True
    event: type[Any] = asyncio.Event

    def place(self) -> object:
        return asyncio.get_running_loop()

    def may_wait(self) -> bool:
        return True

    async def wait(self, event: asyncio.Event, seconds: float | None) -> None:
        # Before Python 3.12, `asyncio.wait_for()` can lose a cancellation.
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()

    async def call(self, target: Any, method: str, *args: Any) -> Any:
        return await getattr(target, f"a{method}")(*args)


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that makes only `SyncCalls`, so its first step is its last."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    raise RuntimeError("A synchronous call was suspended.")


class _Wait:
    """The wait of one caller for all callers of its process or event loop.

    Args:
        ended: An event, which is set when the wait has ended.
    """

    def __init__(self, ended: Any) -> None:
        self.ended = ended
        self.failure = ""  # why a server was not reached


_waits: dict[tuple[object, str, str], _Wait] = {}
"""The waits by place, cache alias of the lock and lock name."""


class Miss:
    """A call that has found no fresh value in the cache.

    Args:
        calls: How to make calls.
        wanted: The value.
    """

    def __init__(self, calls: SyncCalls | AsyncCalls, wanted: Wanted) -> None:
        self.calls = calls
        self.manager = wanted.manager
        self.key = wanted.key
        self.default = wanted.default
        self.limits = Limits(wanted.timeout, wanted.options)
        self.cache = caches[wanted.cache]
        self.version = wanted.version
        self.lock_name = _lock_name(wanted)
        self.invalidation_key = invalidation_key(wanted.key)
        self.computes = False
        self._is_cache_away = False
        self._deadline: float | None = None
        if self.limits.blocking_timeout is not None:
            self._deadline = clock.now() + self.limits.blocking_timeout

    async def get(self, found: Found | None, failure: Exception | None) -> Any:
        """Return the value.

        Args:
            found: The value in the cache, which is not fresh, or None.
            failure: The error of the cache, or None. If its server is away, there is no lock
                either, because nobody could get the value from its holder.
        """
        if failure and not is_unreachable(failure):
            raise failure
        self._refuse_recursion()
        writer = self._lock(self.manager.write_lock)
        try:
            return await self._get(writer, found, failure)
        except BaseException as error:
            self.computes = False
            await self._release_after(error, writer)
            raise

    async def _get(
        self, writer: "ReadLock", found: Found | None, failure: Exception | None
    ) -> Any:
        """Return the value. After an error or an interrupt, `writer` can be held."""
        holder: ReadLock | None = writer
        stale = found if self.limits.stale else None
        try:
            if failure:
                self._is_cache_away = True
                raise _UnreachableError(error_text(failure))
            found = await self._wait_for_turn(writer, stale)
        except _NoLockError as error:
            holder = None
            found = stale
            if not found and _log_interval.is_over():
                logger.warning(
                    "Value computed without a lock: key=%r error=%s", self.key, error_text(error)
                )
        if found:
            return found.value
        return await self._compute(holder)

    # Wait

    async def _wait_for_turn(self, writer: "ReadLock", stale: Found | None) -> Found | None:
        """Wait until the value is stored, and return it, or until it is this caller's turn to
        compute it as the holder of `writer`, and return None.

        Args:
            writer: The write lock of the value.
            stale: The value to return instead of a wait, or None.
        """
        if stale:
            writer.reply_timeout = STALE_REPLY_SECONDS
        if await self._call(writer, "acquire", False):
            return None
        if stale:
            return stale
        if not self.calls.may_wait():
            raise _NoLockError("A wait would block the running event loop")
        while True:
            found, is_turn = await self._wait_together(writer)
            if found or is_turn:
                return found

    async def _wait_together(self, writer: "ReadLock") -> tuple[Found | None, bool]:
        """Wait until the computation of another caller has ended.

        One caller of this process or event loop waits for its others, too, because each grant
        takes a round trip. If there is no value after its wait, because the computation has failed
        or the value was invalidated, it also waits for its turn to compute.

        Returns:
            The value if it is fresh, and whether it is the turn of this caller, which then holds
            `writer`. If neither is the case, wait again.
        """
        place = self.calls.place(), self.manager.alias, self.lock_name
        wait = _Wait(self.calls.event())
        try:
            first = _waits.setdefault(place, wait)
            if first is not wait:
                return await self._wait_behind(first), False
            await self._wait_as_reader()
            found = await self._fresh()
            if found:
                return found, False
            await self._acquire(writer)
            return None, True
        except _UnreachableError as error:
            wait.failure = str(error)
            raise
        finally:
            # Also after an interrupt, or the next callers would wait for this one for ever.
            if _waits.get(place) is wait:
                del _waits[place]
            wait.ended.set()

    async def _wait_as_reader(self) -> None:
        """Wait until nobody computes the value."""
        reader = self._lock(self.manager.read_lock)
        try:
            await self._acquire(reader)
            await self._release(reader)
        except BaseException as error:
            await self._release_after(error, reader)
            raise

    async def _wait_behind(self, first: "_Wait") -> Found | None:
        """Wait until the wait of another caller has ended, and return the value if it is fresh."""
        await self.calls.wait(first.ended, self._seconds_left())
        if first.failure:  # a second attempt would take another timeout
            raise _UnreachableError(first.failure)
        found = await self._fresh()
        if not found and self._seconds_left() == 0:
            raise self._too_late()
        return found

    async def _fresh(self) -> Found | None:
        """Return the value in the cache if it is fresh."""
        found = found_in(await self._call(self.cache, "get", self.key, MISSING, self.version))
        return found if found and found.is_fresh else None

    def _lock(self, make: "Callable[..., ReadLock]") -> "ReadLock":
        lock = make(self.lock_name, timeout=self.limits.lease)
        lock.rides_outages = False
        return lock

    async def _acquire(self, lock: "ReadLock") -> None:
        if not await self._call(lock, "acquire", True, self._seconds_left()):
            raise self._too_late()

    async def _release(self, lock: "ReadLock") -> bool:
        """Release a lock, and return whether it was held until then."""
        try:
            await self._call(lock, "release")
        except LockNotOwnedError:  # it was lost, or not acquired
            return False
        except _UnreachableError as error:  # it is released in the background
            if _log_interval.is_over():
                logger.warning(
                    "Lock not released after computation: key=%r error=%s",
                    *(self.key, error_text(error)),
                )
        return True

    async def _release_after(self, error: BaseException, lock: "ReadLock") -> None:
        """Release a lock, if it is held, after an error or after an interrupt at any line."""
        if self.calls.is_async and isinstance(error, GeneratorExit):
            return  # the event loop is closed, so nothing can be released
        await self._release(lock)

    def _seconds_left(self) -> float | None:
        return None if self._deadline is None else max(0, self._deadline - clock.now())

    def _too_late(self) -> LockNotAcquired:
        return LockNotAcquired(
            f"The value of {short_repr(self.key)} was not computed within "
            f"{self.limits.blocking_timeout:g} s",
            lock_name=self.lock_name,
        )

    # Compute
    #
    # Whoever invalidates the value first stores a new invalidation, and then deletes the value. A
    # computation that finds another invalidation than before it began does not store its value. It
    # looks again after it has stored the value, because no cache can do both in one step. If the
    # cache has evicted the invalidation, the value counts as valid. Otherwise a value would never
    # be stored if its computation fills the cache.

    async def _compute(self, writer: "ReadLock | None") -> Any:
        """Compute the value, store it, and release the lock. `writer` is None if no lock is held.

        If the lock was lost, another caller may have computed and stored a newer value.
        """
        is_stored = False
        found = found_in(await self._cache("get", self.key, MISSING)) if writer else None
        if found and found.is_fresh:  # stored since this caller looked
            value = found.value
        else:
            invalidation = await self._invalidation()
            value = await self._computed()
            if not (writer and writer.lost):
                is_stored = await self._store(value, invalidation)
        if writer and not await self._release(writer) and is_stored:
            await self._cache("delete", self.key)
        return value

    async def _invalidation(self) -> Any:
        """Return the latest invalidation of the value, or None."""
        return await self._cache("get", self.invalidation_key, None)

    async def _computed(self) -> Any:
        # An interrupt can keep a computation from being removed.
        outer = tuple(each for each in _computations.get() if each.computes)
        _computations.set((*outer, self))
        self.computes = True
        try:
            value = self.default() if callable(self.default) else self.default
            if self.calls.is_async and inspect.isawaitable(value):
                value = await value
        finally:
            self.computes = False
            _computations.set(outer)
        if inspect.iscoroutine(value):
            value.close()  # this avoids the warning that it was never awaited
            raise TypeError(
                f"default of {short_repr(self.key)} returned a coroutine. Use "
                "'await locks.aget_or_set(...)' for a coroutine function."
            )
        if inspect.isgenerator(value) or inspect.isasyncgen(value):
            raise TypeError(
                f"default of {short_repr(self.key)} returned a generator, which no cache can "
                "store. Return a list."
            )
        return value

    def _refuse_recursion(self) -> None:
        for each in _computations.get():
            if each.lock_name == self.lock_name and each.computes:
                raise LockError(
                    f"The computation of {short_repr(self.key)} asks for its own value, so it "
                    "would wait for itself. Call the function that computes it instead.",
                    lock_name=self.lock_name,
                )

    async def _store(self, value: Any, invalidation: Any) -> bool:
        """Store the value, and return whether it is in the cache.

        Args:
            value: The value.
            invalidation: The latest invalidation when the computation began, or None.
        """
        valid = (None, invalidation)
        if await self._invalidation() not in valid:
            return False
        found = found_in(await self._cache("get", self.key, MISSING))
        if found and found.is_fresh:  # another caller has stored it, as the holder after this one
            return False
        stored = value
        seconds = self.limits.timeout
        stale = self.limits.stale
        if seconds is not None and (stale or seconds % 1):
            stored = [WITH_EXPIRY, time.time() + seconds, value]
            seconds = math.ceil(seconds + stale)  # some caches ignore fractions of a second
        await self._cache("set", self.key, stored, seconds)
        is_valid = await self._invalidation() in valid
        if not is_valid:
            await self._cache("delete", self.key)
        return is_valid

    async def _cache(self, method: str, *args: Any) -> Any:
        """Call the cache, unless its server is away. Each attempt would take a timeout."""
        if not self._is_cache_away:
            try:
                return await self._call(self.cache, method, *args, self.version)
            except _UnreachableError as error:
                if _log_interval.is_over():
                    logger.warning(
                        "Cache not reached: key=%r error=%s", self.key, error_text(error)
                    )
        return MISSING

    async def _call(self, target: Any, method: str, *args: Any) -> Any:
        """Call a method of a lock or of the cache."""
        try:
            return await self.calls.call(target, method, *args)
        except Exception as error:
            if is_unreachable(error):
                if target is self.cache:
                    self._is_cache_away = True
                raise _UnreachableError(error_text(error)) from error
            raise


_computations: ContextVar[tuple[Miss, ...]] = ContextVar(
    "django_redislock_computations", default=()
)
"""The computations that have called this code. Code that outlives them still has their context, so
each knows whether it runs."""


def _lock_name(wanted: Wanted) -> str:
    """Return the name of the lock of a value.

    Each process has its own values in a `LocMemCache`. If it waited for other processes, it would
    find nothing afterwards. So it has its own locks for them.
    """
    cache = caches[wanted.cache]
    where = wanted.cache
    if isinstance(cache, LocMemCache):
        where = f"{where}@{socket.gethostname()}:{os.getpid()}"
    if wanted.version is None or wanted.version == cache.version:
        return fit_name(f"cache:{where}:{wanted.key}")
    # The version comes first, because a key may begin with the text of a number.
    return fit_name(f"cache-version:{wanted.version}:{where}:{wanted.key}")


def invalidation_key(key: str) -> str:
    """Return the key of the invalidation of a value. Some caches limit the length of keys."""
    return f"invalidated:{digest_of(str(key))}"


class _NoLockError(Exception):
    """The value has to be computed without a lock."""


class _UnreachableError(_NoLockError):
    """The server of the cache, or that of the locks, cannot be reached."""


def is_unreachable(error: BaseException | None) -> bool:
    """Return whether a cache or the locks failed because their server did.

    Missing rights are a mistake in the settings. Clients of caches can wrap the error of a
    connection in one of their own.
    """
    memcache: Any = sys.modules.get("pymemcache.exceptions")
    libmemcached: Any = sys.modules.get("pylibmc")
    while error is not None:
        if isinstance(error, LockError | AuthenticationError | AuthorizationError):
            return False
        if isinstance(error, NoPermissionError):
            return False
        if isinstance(error, RedisError | OSError):
            return True
        if memcache and isinstance(error, memcache.MemcacheError):
            return not isinstance(error, memcache.MemcacheClientError)
        if libmemcached and isinstance(error, libmemcached.Error):
            return not isinstance(error, libmemcached.ClientError)
        error = error.__cause__
    return False


class _LogInterval:
    """Whether to log that a server is away. In an outage each miss fails, so once in a while is
    enough."""

    def __init__(self) -> None:
        self._next = -math.inf

    def is_over(self) -> bool:
        now = clock.now()
        if now < self._next:
            return False
        self._next = now + LOG_INTERVAL_SECONDS
        return True


_log_interval = _LogInterval()
