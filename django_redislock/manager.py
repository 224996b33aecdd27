"""The lock manager: creates, lists, inspects and releases the locks of one cache alias."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from django.core.cache import DEFAULT_CACHE_ALIAS, caches
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS
from redis.exceptions import ConnectionError

from . import caching, validators
from .backends import servers
from .cache_miss import CacheOptions
from .caching import CachedFunction
from .conf import conf
from .engine import history, protocol, queries
from .engine.operations import Flow
from .engine.registry import leases_of
from .engine.runners import arun, run
from .engine.timing import REPLY_TIMEOUT_SECONDS
from .guards import BUSY_STATUS, Guard, GuardOptions
from .health import Health, examine, ping, unreached
from .identity import Owner, current_owner
from .keys import Keys
from .leader import AsyncTerm, AsyncTerms, LeaderOptions, Term, Terms
from .lock_types import (
    Atomic,
    LockOptions,
    MultiLock,
    Mutex,
    Quorum,
    ReadLock,
    Semaphore,
    WriteLock,
    signal_dispatch,
)
from .lock_types.calling_task import for_calling_task
from .lock_types.errors import lock_lost_error, lock_not_owned_error
from .names import check_name, check_names, matcher, short_repr
from .redaction import without_secrets
from .signals import lock_force_released
from .snapshots import Event, LockInfo, Page, Rates, Waiter
from .text import printable
from .validators import Seconds

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

KINDS = tuple(each.kind for each in (Mutex, Semaphore, ReadLock, Quorum))
"""The lock types that a listing can be filtered by."""


class LockManager:
    """Create, list, inspect and release locks on the Redis server of one cache alias.

    Methods that send commands to Redis raise redis-py's `ConnectionError` or `TimeoutError` if
    Redis is unreachable. They raise `ImproperlyConfigured` if the cache alias cannot store locks.

    Args:
        alias: The cache alias. None means ``REDISLOCK_CACHE``.
    """

    def __init__(self, alias: str | None = None) -> None:
        self._alias = alias
        self._server = partial(servers.__getitem__, alias)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {without_secrets(repr(self.alias))}>"

    @property
    def alias(self) -> str:
        """The cache alias whose server stores the locks."""
        return self._alias or conf.cache

    def using(self, alias: str | None) -> "LockManager":
        """Return the manager of another cache alias.

        Args:
            alias: The cache alias. None means ``REDISLOCK_CACHE``.
        """
        if alias is not None and not isinstance(alias, str):
            raise TypeError(f"alias must be a str, got {short_repr(alias)}")
        return type(self)(alias)

    def everywhere(self) -> "tuple[LockManager, ...]":
        """Return the managers of all cache aliases that can store locks, this one first.

        Several aliases with the same keys in the same database count as one. This method does not
        connect to Redis.
        """
        found: dict[tuple[object, ...], LockManager] = {}
        for alias in dict.fromkeys((self._alias or conf.cache, *caches.settings)):
            try:
                identity = servers[alias].identity
            except ImproperlyConfigured:
                if not found:
                    raise
                continue
            if identity not in found:
                found[identity] = type(self)(alias) if found else self
        return tuple(found.values())

    def lock(self, name: str, **options: Unpack[LockOptions]) -> Mutex:
        """Create a mutex: a lock with at most one holder.

        Args:
            name: The lock's name: 1 to 512 bytes in UTF-8, without control characters.
            timeout: The lease in seconds, at least 0.01. If the holder dies, the lock expires
                after this time. None means ``REDISLOCK_TIMEOUT``.
            blocking: Whether `acquire()` waits if the lock is not free. Waiters acquire the lock
                in the order in which they arrive.
            blocking_timeout: The maximum wait in seconds. None waits without a limit.
            auto_renewal: Whether the lease is renewed while the holder runs.
            reentrant: Whether the thread, task or greenlet that holds the lock can acquire it
                again. This makes no request to Redis. The lock is released when it has been
                released as often as it was acquired.
            at_least_for: The seconds for which the lock is held at least, even if it is released
                earlier. Use it for a job that several machines start at the same time.
            max_hold: Stop renewing after this many seconds from acquisition. Then the lock counts
                as lost, and its lease expires. It must be greater than `timeout` and
                `at_least_for`, and it needs `auto_renewal`. None means no limit.
            min_replicas: The number of replicas, from 0 to 100, that must confirm an acquisition
                or a renewal. It costs one more round trip for ``WAIT``. If too few replicas
                confirm within 1 second, `acquire()` raises redis-py's `ConnectionError`, and the
                lock is not held. A failover keeps the lock only if this is the number of all
                replicas, all callers use it, no server returns without its data, and the clocks
                agree.
            release_on_commit: True, or a database alias. If the lock is released inside a
                transaction of this database, it stays held until the outermost transaction ends,
                or until the savepoint is rolled back. Until then the same thread can acquire the
                lock again. Not supported in async code or with autocommit off.
            metadata: Data about the holder that listings show. It must be a mapping that can be
                serialized as JSON, at most 4,096 characters long.
            on_lost: A function that is called once, with the lock, if the lock is lost while it is
                held. It runs in the thread or event loop that renews leases, so it must be short.
                ``"abort"`` cancels the asyncio task that holds the lock, and ``async with`` then
                raises `LockLost`. A thread must check `lost` or call `assert_held()`.

        Raises:
            TypeError: An option has the wrong type or is unknown.
            ValueError: An option has an invalid value.
        """
        return Mutex(self._server, name, **options)

    def read_lock(self, name: str, **options: Unpack[LockOptions]) -> ReadLock:
        """Create the read side of a read-write lock.

        Any number of readers can hold the lock at the same time, or one writer. Readers and
        writers wait in one queue. A reader that arrives after a waiting writer waits behind it, so
        neither side starves.

        A reader that acquires the lock a second time queues behind any waiting writer, which in
        turn waits for that reader. Use ``reentrant=True`` for nested readers.

        Args:
            name: The lock's name, the same as for `write_lock()`.
            **options: The options of `lock()`.
        """
        return ReadLock(self._server, name, **options)

    def write_lock(self, name: str, **options: Unpack[LockOptions]) -> WriteLock:
        """Create the write side of a read-write lock. A writer holds the lock alone.

        Args:
            name: The lock's name, the same as for `read_lock()`.
            **options: The options of `lock()`.
        """
        return WriteLock(self._server, name, **options)

    def semaphore(
        self, name: str, limit: int, *, weight: int = 1, **options: Unpack[LockOptions]
    ) -> Semaphore:
        """Create a semaphore: a lock with up to `limit` holders. Each holder has its own lease.

        Waiters acquire the semaphore in the order in which they arrive. A waiter with a small
        weight does not overtake a waiter with a large weight.

        Args:
            name: The lock's name.
            limit: The total weight of all holders, from 1 to 1,000,000.
            weight: How much of the limit this holder takes, from 1 to `limit`.
            **options: The options of `lock()`.
        """
        return Semaphore(self._server, name, limit, weight=weight, **options)

    def lock_many(self, names: Iterable[str], **options: Unpack[LockOptions]) -> MultiLock:
        """Create a lock over several mutexes: all of them are held, or none.

        The mutexes are acquired one after the other, sorted by name, so that two callers cannot
        wait for each other. `MultiLock.fence_tokens` has the fencing token of each name.

        Args:
            names: The names of the mutexes, in any order.
            **options: The options of `lock()`. `blocking_timeout` limits the total wait.
        """
        return MultiLock(self._server, names, **options)

    def quorum(self, name: str, using: Iterable[str], **options: Unpack[LockOptions]) -> Quorum:
        """Create a quorum lock: a mutex that a majority of independent servers must grant.

        The lock works while a majority of the servers responds. Otherwise its methods raise
        redis-py's `ConnectionError`. `Quorum.validity` is the time in seconds for which the lock
        is certainly held. The cache alias of this manager is not used.

        Args:
            name: The lock's name.
            using: Cache aliases in any order, each with its own server. Use 3 or 5. An even
                number, or one, causes a `RuntimeWarning`.
            **options: The options of `lock()`.
        """
        aliases = validators.aliases("using", using)
        return Quorum([partial(servers.__getitem__, each) for each in aliases], name, **options)

    def atomic(
        self, name: str, *, using_db: str = DEFAULT_DB_ALIAS, **options: Unpack[LockOptions]
    ) -> Atomic:
        """Create a mutex around a database transaction, for ``with`` or as a decorator.

        The mutex is acquired before the transaction begins, and released after the transaction is
        committed or rolled back. Inside another transaction, the mutex is released after the
        outermost transaction ends. ``with`` returns the mutex.

        Args:
            name: The lock's name. For a decorator it can contain fields such as ``{site_id}``.
            using_db: The database alias of the transaction.
            **options: The options of `lock()`, except `release_on_commit`.
        """
        if "release_on_commit" in options:
            raise TypeError(
                "atomic() does not accept release_on_commit. Choose the database with using_db."
            )
        if not isinstance(using_db, str):
            raise TypeError(f"using_db must be an alias of DATABASES, got {short_repr(using_db)}")
        options["release_on_commit"] = validators.database("using_db", using_db) or False
        return Atomic(self.lock(name, **options), using_db)

    def leader(self, name: str, **options: Unpack[LeaderOptions]) -> Terms:
        """Iterate over the terms of office of a leader, of which there is one at a time.

        ``for term in locks.leader("poller")`` runs its body while this process leads. `Term` is
        the held lock. The end of the body steps down and stands again, behind the candidates that
        wait. ``break`` and exceptions step down and end the loop. While the loop runs in the main
        thread, SIGTERM raises `SystemExit`, unless your program handles the signal itself.

        Args:
            name: The lock's name.
            timeout: The lease in seconds. If the leader dies, another one leads after this time.
                None means ``REDISLOCK_TIMEOUT``.
            blocking_timeout: The maximum wait for each term in seconds. None waits without a
                limit. Then the loop also survives outages of Redis, once it has reached Redis.
            max_hold: The maximum duration of a term in seconds. None means no limit.
            min_replicas: As for `lock()`.
            metadata: As for `lock()`. ``{"role": "leader"}`` is added.
            on_lost: A function that is called with the term if the leader is deposed, as for
                `lock()`.

        Raises:
            TypeError: An option has the wrong type or is unknown.
            ValueError: An option has an invalid value.
        """
        return Terms(Term(self._server, name, **options))

    def aleader(self, name: str, **options: Unpack[LeaderOptions]) -> AsyncTerms:
        """Async version of `leader()`, for ``async for``."""
        return AsyncTerms(AsyncTerm(self._server, name, **options))

    @overload
    def get_or_set(
        self,
        key: str,
        default: Callable[[], T],
        timeout: Seconds | None,
        **options: Unpack[CacheOptions],
    ) -> T: ...
    @overload
    def get_or_set(
        self, key: str, default: T, timeout: Seconds | None, **options: Unpack[CacheOptions]
    ) -> T: ...
    def get_or_set(
        self,
        key: str,
        default: Any,
        timeout: Seconds | None,
        *,
        cache: str = DEFAULT_CACHE_ALIAS,
        version: int | None = None,
        **options: Any,
    ) -> Any:
        """Return a value from a cache. If it is missing, one caller computes it for all.

        A hit costs one `get()` of the cache and no lock. On a miss, one caller on all machines
        computes and stores the value, and the others get it as soon as it is stored. None is a
        value. An exception of `default` is raised in its caller and not stored, and then the next
        waiter computes. If the lock was lost during the computation, the value is returned and not
        stored. If Redis is unreachable, or a wait would block a running event loop, the value is
        computed without a lock.

        Args:
            key: The key in the cache.
            default: A callable that returns the value, or the value itself.
            timeout: The seconds until the value expires. None means never.
            cache: The cache alias that stores the value. Any backend will do.
            stale: For how many more seconds an expired value is returned while one caller computes
                a new one. The cache then stores a list with the value and its expiry.
            blocking_timeout: The maximum wait for the computation of another caller, in seconds.
                None waits without a limit.
            lease: The lease of the lock in seconds, as `timeout` of `lock()`. If the process that
                computes dies, another caller computes after this time. None means
                ``REDISLOCK_TIMEOUT``.
            version: The version of the key. None means the version of the cache.

        Raises:
            LockNotAcquired: The value was not computed within `blocking_timeout`.
            LockError: The computation asks for its own value.
            TypeError: An argument has the wrong type, or `default` returns a coroutine or a
                generator.
            ValueError: An argument has an invalid value.
        """
        return caching.get_or_set(self, key, default, timeout, cache, version, options)

    @overload
    async def aget_or_set(
        self,
        key: str,
        default: Callable[[], Awaitable[T]],
        timeout: Seconds | None,  # noqa: ASYNC109  of the value, not of the call
        **options: Unpack[CacheOptions],
    ) -> T: ...
    @overload
    async def aget_or_set(
        self,
        key: str,
        default: Callable[[], T],
        timeout: Seconds | None,  # noqa: ASYNC109
        **options: Unpack[CacheOptions],
    ) -> T: ...
    @overload
    async def aget_or_set(
        self,
        key: str,
        default: T,
        timeout: Seconds | None,  # noqa: ASYNC109
        **options: Unpack[CacheOptions],
    ) -> T: ...
    async def aget_or_set(
        self,
        key: str,
        default: Any,
        timeout: Any,  # noqa: ASYNC109
        *,
        cache: str = DEFAULT_CACHE_ALIAS,
        version: int | None = None,
        **options: Any,
    ) -> Any:
        """Async version of `get_or_set()`. `default` can be a coroutine function."""
        return await caching.aget_or_set(self, key, default, timeout, cache, version, options)

    def cached(
        self,
        key: str | Callable[..., str],
        timeout: Seconds | None,
        **options: Unpack[CacheOptions],
    ) -> Callable[[Callable[P, R]], CachedFunction[P, R]]:
        """Return a decorator that caches the results of a function as `get_or_set()` does.

        The function can be a coroutine function. The decorated function has the methods
        `invalidate()` and `ainvalidate()`, which take the arguments of a call.

        Args:
            key: The key in the cache, with fields such as ``{currency}`` that get their values
                from the arguments of the call; or a function that takes these arguments and
                returns the key.
            timeout: The seconds until a result expires. None means never.
            **options: The options of `get_or_set()`.

        Raises:
            django.core.exceptions.ImproperlyConfigured: The key has a field that is not a
                parameter of the function, or no field although the function has parameters.

        A call raises `ValueError` if a field is missing, or is an attribute or item that is None.
        """

        def decorate(function: Callable[P, R]) -> CachedFunction[P, R]:
            return CachedFunction(function, self, key, timeout, options)

        return decorate

    def guard(
        self,
        name: str,
        *,
        status: int = BUSY_STATUS,
        retry_after: Seconds | None = None,
        on_busy: Callable[..., Any] | None = None,
        **options: Unpack[GuardOptions],
    ) -> Guard:
        """Return a decorator for views: while a request holds the lock, others are refused.

        It decorates a sync or async view, a method of a class-based view, and a view of Django
        REST framework. A request with the method OPTIONS passes without the lock. With
        ``ATOMIC_REQUESTS``, the lock is held until the commit. A synchronous view that streams
        its response holds the lock until the response is closed.

        Args:
            name: The lock's name, with fields that get their values from the arguments of the
                view, such as ``{pk}`` and ``{request.user.pk}``.
            status: The status of the response to a request that is refused. Its body is a sentence
                as plain text.
            retry_after: The seconds in its header ``Retry-After``. None means the seconds until
                the lease of the holder expires, but from 1 to 60. If the holder has died, the lock
                is free by then, unless its lease is longer than 60 seconds.
            on_busy: A view that makes that response, such as JSON. It gets the arguments of the
                guarded view. For an async view it can be sync or async.
            **options: The options of `lock()`, except `blocking`. With `blocking_timeout`, a
                request waits for the lock.

        Raises:
            TypeError: An option has the wrong type or is unknown.
            ValueError: An option has an invalid value.
        """
        return Guard(self, name, status, retry_after, on_busy, options)

    def assert_held(self, name: str) -> None:
        """Check that this thread, task or greenlet holds a lock, without a request to Redis.

        Args:
            name: The lock's name.

        Raises:
            LockLost: The lock was lost while it was held.
            LockNotOwnedError: The caller does not hold the lock.
        """
        self._assert_held(name, current_owner())

    @for_calling_task
    async def aassert_held(self, caller: Owner, name: str) -> None:
        """Async version of `assert_held()`. It makes no request either."""
        self._assert_held(name, caller)

    def _assert_held(self, name: str, owner: Owner) -> None:
        leases = leases_of(owner, self._server(), check_name(name))
        if not leases:
            raise lock_not_owned_error(name, "use")
        if all(lease.lost for lease in leases):
            raise lock_lost_error(name, "use")

    def get(self, name: str) -> LockInfo | None:
        """Return a snapshot of one lock, or None if it has no holder and no waiter."""
        return self._run(queries.get(self._keys, check_name(name)))

    async def aget(self, name: str) -> LockInfo | None:
        """Async version of `get()`."""
        return await self._arun(queries.get(self._keys, check_name(name)))

    def count(self) -> int:
        """Return how many locks are held."""
        return self._run(queries.count(self._keys))

    async def acount(self) -> int:
        """Async version of `count()`."""
        return await self._arun(queries.count(self._keys))

    def active(self, pattern: str | None = None, *, kind: str | None = None) -> Iterator[LockInfo]:
        """Iterate over the held locks, in no particular order.

        The iterator reads several locks per request. A lock that is acquired or released during
        the iteration can be missing.

        Args:
            pattern: A pattern for the whole name: ``*`` matches any characters, ``?`` matches one
                character. None matches every name.
            kind: The lock type, such as ``"mutex"``. None means every type.

        Raises:
            ValueError: `kind` is not a lock type.
        """
        return self._active(_filter(pattern, kind))

    def _active(self, matches: Callable[[LockInfo], bool]) -> Iterator[LockInfo]:
        stream = queries.LockStream(self._keys)
        while not stream.is_done:
            yield from filter(matches, self._run(stream.read()))

    def aactive(
        self, pattern: str | None = None, *, kind: str | None = None
    ) -> AsyncIterator[LockInfo]:
        """Async version of `active()`."""
        return self._aactive(_filter(pattern, kind))

    async def _aactive(self, matches: Callable[[LockInfo], bool]) -> AsyncIterator[LockInfo]:
        stream = queries.LockStream(self._keys)
        while not stream.is_done:
            for info in filter(matches, await self._arun(stream.read())):
                yield info

    def page(self, pattern: str | None = None, *, start: int = 0, stop: int = 100) -> Page:
        """Return the held locks from `start` to `stop`, sorted by when their leases expire.

        With a pattern, all names are read, 2,000 per request. Without one, only about as many
        names are read as the page needs.

        Args:
            pattern: The pattern, as for `active()`.
            start: The index of the first lock.
            stop: The index after the last lock.

        Returns:
            The locks, and how many locks match in total.
        """
        return self._run(self._page(pattern, start, stop))

    async def apage(self, pattern: str | None = None, *, start: int = 0, stop: int = 100) -> Page:
        """Async version of `page()`."""
        return await self._arun(self._page(pattern, start, stop))

    def _page(self, pattern: str | None, start: int, stop: int) -> Flow[Page]:
        validators.count("stop", stop, least=0)
        if validators.count("start", start, least=0) > stop:
            raise ValueError(f"start must be from 0 to stop={stop!r}, got {short_repr(start)}")
        return queries.page(self._keys, pattern, start, stop)

    def get_many(self, names: Iterable[str]) -> dict[str, LockInfo]:
        """Return a snapshot of each lock by name. A lock that is free is left out."""
        return self._run(queries.get_many(self._keys, check_names(names)))

    async def aget_many(self, names: Iterable[str]) -> dict[str, LockInfo]:
        """Async version of `get_many()`."""
        return await self._arun(queries.get_many(self._keys, check_names(names)))

    def queue(self, name: str, limit: int = 100) -> tuple[Waiter, ...]:
        """Return the waiters of a lock, the first in the queue first, at most `limit`."""
        return self._run(self._queue(name, limit))

    async def aqueue(self, name: str, limit: int = 100) -> tuple[Waiter, ...]:
        """Async version of `queue()`."""
        return await self._arun(self._queue(name, limit))

    def _queue(self, name: str, limit: int) -> Flow[tuple[Waiter, ...]]:
        return queries.queue(self._keys, check_name(name), validators.count("limit", limit))

    def history(self, name: str | None = None, limit: int = 100) -> tuple[Event, ...]:
        """Return the latest events, the newest first.

        Args:
            name: The lock's name. None means all locks.
            limit: The maximum number of events. ``REDISLOCK_HISTORY`` limits how many are kept.
        """
        return self._run(self._history(name, limit))

    async def ahistory(self, name: str | None = None, limit: int = 100) -> tuple[Event, ...]:
        """Async version of `history()`."""
        return await self._arun(self._history(name, limit))

    def _history(self, name: str | None, limit: int) -> Flow[tuple[Event, ...]]:
        checked = None if name is None else check_name(name)
        return history.history(self._keys, checked, validators.count("limit", limit))

    def rates(self) -> Rates:
        """Return how many locks were acquired, refused, expired, force-released and lost, and how
        many holders were killed, in each minute of the last hour."""
        return self._run(history.rates(self._keys))

    async def arates(self) -> Rates:
        """Async version of `rates()`."""
        return await self._arun(history.rates(self._keys))

    def force_release(
        self,
        name: str,
        token: str | None = None,
        *,
        by: object = None,
        reason: str | None = None,
    ) -> int:
        """Force-release a lock, and return how many holders lost it.

        This does not stop a holder. It notices the loss at its next renewal: `lost` becomes true
        and `on_lost` is called. If its code reacts to neither, it runs to its end, alongside the
        next holder.

        Args:
            name: The lock's name.
            token: A lock token, or the `stored_token` of a `Holding`. Only holders with this token
                lose the lock. None means all holders.
            by: Who releases the lock, such as a user. The history has its text, and the signal
                `lock_force_released` the object.
            reason: Why, in at most 500 characters. It is in the history, too.
        """
        tokens = self._run(self._force(name, token, by, reason))
        return self._send_force_released(name, tokens, by, reason)

    async def aforce_release(
        self,
        name: str,
        token: str | None = None,
        *,
        by: object = None,
        reason: str | None = None,
    ) -> int:
        """Async version of `force_release()`."""
        tokens = await self._arun(self._force(name, token, by, reason))
        return self._send_force_released(name, tokens, by, reason)

    def release_for(
        self, name: str, token: str, *, at_least_for: Seconds = 0, killed: bool = False
    ) -> bool:
        """Release a lock on behalf of a holder that has given it up, or is known to be dead.

        The history has the outcome ``"released"``, as if the holder had released it. A holder that
        still renews the lock finds that it has lost it. So acquire a lock that another process
        releases with ``auto_renewal=False``, and do not use its lock object any more.

        Args:
            name: The lock's name.
            token: The `token` of the holder's lock object.
            at_least_for: The cooldown of the lock, in seconds from its acquisition.
            killed: Whether the holder is dead. The history then has the outcome ``"killed"``.

        Returns:
            Whether the token still held the lock. If several holders chose the same lock token,
            all of them are released.
        """
        return self._run(self._release_for(name, token, at_least_for, killed))

    async def arelease_for(
        self, name: str, token: str, *, at_least_for: Seconds = 0, killed: bool = False
    ) -> bool:
        """Async version of `release_for()`."""
        return await self._arun(self._release_for(name, token, at_least_for, killed))

    def _release_for(
        self, name: str, token: str, at_least_for: Seconds, killed: bool
    ) -> Flow[bool]:
        keys = self._keys.of(check_name(name))
        token = validators.reported_token("token", token)
        cooldown = validators.at_least("at_least_for", at_least_for)
        release = partial(
            protocol.release,
            keys,
            at_least_for=cooldown,
            killed=killed,
            reply_timeout=REPLY_TIMEOUT_SECONDS,
        )
        if (yield from release(token)):
            return True
        # The caller of `acquire()` may have chosen the token. Then Redis stores it with a suffix.
        was_held = False
        info = yield from queries.get(self._keys, name, REPLY_TIMEOUT_SECONDS)
        for holding in info.holders if info else ():
            if holding.token == token and (yield from release(holding.stored_token)):
                was_held = True
        return was_held

    def _force(
        self, name: str, token: str | None, by: object, reason: str | None
    ) -> Flow[tuple[str, ...]]:
        keys = self._keys.of(check_name(name))
        chosen = None if token is None else validators.reported_token("token", token)
        who = "" if by is None else str(by)[: validators.MAX_BY_CHARACTERS]
        why = validators.reason("reason", reason)
        return protocol.force_release(keys, chosen, printable(who), printable(why))

    def _send_force_released(
        self, name: str, tokens: tuple[str, ...], by: object, reason: str | None
    ) -> int:
        if tokens:
            signal_dispatch.send(
                lock_force_released,
                sender=type(self),
                using=self.alias,
                name=name,
                tokens=tokens,
                by=by,
                reason=reason,
            )
        return len(tokens)

    @property
    def _keys(self) -> Keys:
        return self._server().keys

    def _run(self, flow: Flow[T]) -> T:
        return run(self._server().client, flow)

    async def _arun(self, flow: Flow[T]) -> T:
        return await arun(await self._server().async_client(), flow)

    def ping(self, *, timeout: Seconds = 2) -> float:
        """Acquire and release a test lock, and return how many seconds that took.

        Each call uses a lock name of its own, so calls do not wait for each other.

        Args:
            timeout: The maximum duration in seconds, approximately.

        Raises:
            redis.exceptions.RedisError: Locking does not work. The server is unreachable, does not
                respond, is read-only or out of memory, or rejects scripts.
        """
        return self._run(ping(self._server(), validators.lease("timeout", timeout)))

    async def aping(self, *, timeout: Seconds = 2) -> float:  # noqa: ASYNC109  like the sync version
        """Async version of `ping()`."""
        limit = validators.lease("timeout", timeout)
        return await self._arun(ping(self._server(), limit))

    def health(self, *, timeout: Seconds = 5) -> Health:
        """Check that locking works and that the server is configured safely for locks.

        An unreachable server is a result with the status ``"failed"``, not an exception. The check
        takes about 20 round trips.

        Args:
            timeout: The maximum duration in seconds, approximately.
        """
        server, limit = self._server(), validators.lease("timeout", timeout)
        try:
            return run(server.client, examine(server, limit))
        # A Cluster's client connects when it is made. Some clients cannot be made.
        except (ConnectionError, ImproperlyConfigured) as error:
            return unreached(server, error)

    async def ahealth(self, *, timeout: Seconds = 5) -> Health:  # noqa: ASYNC109  like the sync version
        """Async version of `health()`."""
        server, limit = self._server(), validators.lease("timeout", timeout)
        try:
            return await arun(await server.async_client(), examine(server, limit))
        except (ConnectionError, ImproperlyConfigured) as error:
            return unreached(server, error)


def _filter(pattern: str | None, kind: str | None) -> Callable[[LockInfo], bool]:
    if kind is not None and kind not in KINDS:
        raise ValueError(
            f"kind must be one of {', '.join(map(repr, KINDS))}, got {short_repr(kind)}"
        )
    matches = matcher(pattern)
    return lambda info: (kind is None or info.kind == kind) and matches(info.name)


locks = LockManager()
"""The lock manager of the cache alias in ``REDISLOCK_CACHE``."""
