"""The manager: makes locks on one alias of ``CACHES``, tells what is held there, releases it."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TypeVar, Unpack

from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS
from redis.exceptions import ConnectionError

from . import values
from .conf import conf
from .connection import Server, server
from .engine import flows, listing, past
from .engine.drivers import arun, run
from .engine.lease import held_by
from .engine.ops import Flow
from .engine.renewal import loop_book, thread_book
from .exceptions import LockLost, LockNotOwnedError
from .health import Health, examine, ping, unreached
from .holder import current_owner
from .info import Event, LockInfo, Page, Rates, Waiter
from .keys import Keys
from .names import check_name, check_names, matcher
from .primitives import Atomic, Many, Mutex, Options, Quorum, ReadLock, Semaphore, WriteLock
from .secrecy import without_secrets
from .signals import lock_force_released
from .values import Seconds

T = TypeVar("T")

KINDS = tuple(each.kind for each in (Mutex, Semaphore, ReadLock, Quorum))
"""What a lock can be listed as."""

OPTION_NAMES = Options.__optional_keys__


class LockManager:
    """Locks on the server of one alias of ``CACHES``; without one, of ``REDISLOCK_CACHE``.

    Methods that ask Redis raise redis-py's errors if it is away, and
    `ImproperlyConfigured` if the alias is none that locks can live on.
    """

    def __init__(self, alias: str | None = None) -> None:
        self._alias = alias

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {without_secrets(repr(self.alias))}>"

    @property
    def alias(self) -> str:
        return self._alias or conf.cache

    def using(self, alias: str | None) -> "LockManager":
        """The manager of another alias of ``CACHES`` (None: of ``REDISLOCK_CACHE``)."""
        if alias is not None and not isinstance(alias, str):
            raise TypeError(f"alias must be a str, got {alias!r}")
        return type(self)(alias)

    def everywhere(self) -> "tuple[LockManager, ...]":
        """The managers of all aliases of ``CACHES`` that locks can live on, this one's first.
        Aliases with the same keys in the same database are one. Does not connect."""
        found = {self._identity(): self}
        for alias in caches.settings:
            with suppress(ImproperlyConfigured):
                other = self.using(alias)
                found.setdefault(other._identity(), other)
        return tuple(found.values())

    def _identity(self) -> tuple[object, str]:
        server = self._server()
        return server.database or self.alias, server.keys.prefix

    def lock(self, name: str, **options: Unpack[Options]) -> Mutex:
        """A mutex: of all who ask for `name`, one holds it.

        name
            1 to 512 bytes, no control characters.
        timeout
            The lease in seconds (None: ``REDISLOCK_TIMEOUT``): how long the lock stays if
            its holder dies. At least 10 ms.
        blocking, blocking_timeout
            Whether to wait while another holds it, and for how many seconds at most (None:
            for ever). Who waits is let in first come, first served.
        auto_renewal
            Whether the lease is renewed for as long as the holder lives.
        reentrant
            Whether a thread, task or greenlet that holds it may enter again, which asks
            nothing of Redis; it is released as often as it was entered.
        at_least_for
            Seconds for which it stays taken, however soon it is released: for work that
            several machines begin at the same time by their own clocks.
        min_replicas
            The number of replicas, from 0 to 100, that must have the lock before an acquisition
            or a renewal counts, so that a failover to one of them keeps the lock. It costs one
            more round trip, for ``WAIT``. If the replicas don't answer within a second, `acquire`
            raises redis-py's `ConnectionError` and leaves nothing behind. A lease that can't be
            renewed is lost when it expires. This narrows the window of a failover, but does not
            close it: see the explanation of faults.
        release_on_commit
            True, or the alias of a database: where the lock is released inside a transaction
            of it, it stays held until the outermost one is committed or rolled back, or the
            savepoint in which it was released. The same thread can enter it again meanwhile.
            For sync code, and not for transactions managed by hand (`set_autocommit`).
        metadata
            What to tell of the holder where locks are listed: a mapping that JSON can take.
        on_lost
            Called with the lock, once, if it is lost while it is held. It runs in the thread
            (or event loop) that renews, so it should be short. ``"abort"`` cancels the asyncio
            task that holds the lock, and ``async with`` then raises `LockLost`; a thread has
            to ask `lost` or `assert_held()`.

        Raises `ValueError` or `TypeError`, naming the argument and its value.
        """
        values.check_options("lock", options, OPTION_NAMES)
        return Mutex(self._server, name, **options)

    def read_lock(self, name: str, **options: Unpack[Options]) -> ReadLock:
        """The readers' side of a read-write lock. Options as of `lock`.

        Readers hold it together, a writer alone. All wait in one queue: a reader that comes
        after a writer waits behind it, and readers next to each other enter together. To nest
        it, use `reentrant`: a second entry would wait behind a writer that waits for the first.
        """
        values.check_options("read_lock", options, OPTION_NAMES)
        return ReadLock(self._server, name, **options)

    def write_lock(self, name: str, **options: Unpack[Options]) -> WriteLock:
        """The writers' side of a read-write lock; see `read_lock`."""
        values.check_options("write_lock", options, OPTION_NAMES)
        return WriteLock(self._server, name, **options)

    def semaphore(
        self, name: str, limit: int, *, weight: int = 1, **options: Unpack[Options]
    ) -> Semaphore:
        """At most `limit` holders at a time, or fewer that weigh as much. Options as of `lock`.
        The limit is from 1 to 1,000,000, and the weight is from 1 to the limit.

        Each has its own lease. A `weight` above 1 takes more of the limit at once; who waits
        for much is not overtaken by who wants little.
        """
        values.check_options("semaphore", options, OPTION_NAMES)
        return Semaphore(self._server, name, limit, weight=weight, **options)

    def lock_many(self, names: Iterable[str], **options: Unpack[Options]) -> Many:
        """The mutexes of all `names`, or none of them. Options as of `lock`; `blocking_timeout`
        is for all together.

        They are acquired one after the other in the order of their names, whatever the order
        in `names`, so that two callers can't wait for each other. `fence_tokens` has the
        fencing token of each name.
        """
        values.check_options("lock_many", options, OPTION_NAMES)
        return Many(self._server, names, **options)

    def quorum(self, name: str, using: Iterable[str], **options: Unpack[Options]) -> Quorum:
        """A mutex that a majority of independent servers has to grant. Options as of `lock`.

        `using` are aliases of ``CACHES``, each on a server of its own, best three or five (an
        even number, or one, is warned of); their order means nothing. It goes on while a
        majority of them answers, and raises redis-py's `ConnectionError` else. `validity` tells
        for how many seconds it is surely held. This manager's own alias is not used.
        """
        values.check_options("quorum", options, OPTION_NAMES)
        servers = [partial(server, alias) for alias in values.aliases("using", using)]
        return Quorum(servers, name, **options)

    def atomic(
        self, name: str, *, using_db: str = DEFAULT_DB_ALIAS, **options: Unpack[Options]
    ) -> Atomic:
        """A mutex around a transaction, in the order that is safe: acquired before it begins,
        released after it is committed or rolled back. Inside of another transaction, after the
        outermost. For ``with``, which gives the mutex, or as a decorator. Options as of `lock`,
        but for `release_on_commit`."""
        values.check_options("atomic", options, OPTION_NAMES)
        if "release_on_commit" in options:
            raise TypeError("release_on_commit is what using_db says, and can't be given as well")
        if not isinstance(using_db, str):
            raise TypeError(f"using_db must be an alias of DATABASES, got {using_db!r}")
        options["release_on_commit"] = values.database("using_db", using_db) or False
        return Atomic(self.lock(name, **options), using_db)

    def assert_held(self, name: str) -> None:
        """Raise `LockNotOwnedError` unless this thread, task or greenlet holds `name`, and
        `LockLost` if it did and lost it. Does not ask Redis."""
        leases = held_by(current_owner(), self._server(), check_name(name))
        if not leases:
            raise LockNotOwnedError(f"Lock {name!r} is not held by its caller", lock_name=name)
        if all(lease.lost for lease in leases):
            raise LockLost(f"Lock {name!r} was lost while it was held", lock_name=name)

    def get(self, name: str) -> LockInfo | None:
        """What is known of one lock; None if nobody holds it or waits for it."""
        return self._run(listing.get(self._keys, check_name(name)))

    async def aget(self, name: str) -> LockInfo | None:
        """See get()."""
        return await self._arun(listing.get(self._keys, check_name(name)))

    def count(self) -> int:
        """How many locks are held."""
        return self._run(listing.count(self._keys))

    async def acount(self) -> int:
        """See count()."""
        return await self._arun(listing.count(self._keys))

    def active(self, pattern: str | None = None, *, kind: str | None = None) -> Iterator[LockInfo]:
        """The locks that are held, a page at a time and in no order.

        `pattern` is matched with the whole name: ``*`` stands for any run of characters,
        ``?`` for one. A lock that is taken or released meanwhile may be told or not.
        """
        return self._active(_filter(pattern, kind))

    def _active(self, wanted: Callable[[LockInfo], bool]) -> Iterator[LockInfo]:
        cursors = listing.beginning()
        while cursors:
            infos, cursors = self._run(listing.page(self._keys, cursors))
            yield from filter(wanted, infos)

    def aactive(
        self, pattern: str | None = None, *, kind: str | None = None
    ) -> AsyncIterator[LockInfo]:
        """See active()."""
        return self._aactive(_filter(pattern, kind))

    async def _aactive(self, wanted: Callable[[LockInfo], bool]) -> AsyncIterator[LockInfo]:
        cursors = listing.beginning()
        while cursors:
            infos, cursors = await self._arun(listing.page(self._keys, cursors))
            for info in filter(wanted, infos):
                yield info

    def page(self, pattern: str | None = None, *, start: int = 0, stop: int = 100) -> Page:
        """Return the held locks from `start` to `stop`, in the order in which their leases end,
        and how many locks match. `pattern` is that of `active`. If it is given, all names are
        read, 2,000 in a round trip."""
        return self._run(self._page(pattern, start, stop))

    async def apage(self, pattern: str | None = None, *, start: int = 0, stop: int = 100) -> Page:
        """See page()."""
        return await self._arun(self._page(pattern, start, stop))

    def _page(self, pattern: str | None, start: int, stop: int) -> Flow[Page]:
        _check_pattern(pattern)
        values.count("stop", stop, least=0)
        if values.count("start", start, least=0) > stop:
            raise ValueError(f"start must be from 0 to stop={stop!r}, got {start!r}")
        return listing.ending_first(self._keys, pattern, start, stop)

    def get_many(self, names: Iterable[str]) -> dict[str, LockInfo]:
        """What is known of several locks, by name; who is free is left out."""
        infos = self._run(listing.several(self._keys, check_names(names)))
        return {info.name: info for info in infos}

    async def aget_many(self, names: Iterable[str]) -> dict[str, LockInfo]:
        """See get_many()."""
        flow = listing.several(self._keys, check_names(names))
        return {info.name: info for info in await self._arun(flow)}

    def queue(self, name: str, limit: int = 100) -> tuple[Waiter, ...]:
        """Who waits for a lock, first to last, `limit` of them at most."""
        return self._run(self._queue(name, limit))

    async def aqueue(self, name: str, limit: int = 100) -> tuple[Waiter, ...]:
        """See queue()."""
        return await self._arun(self._queue(name, limit))

    def _queue(self, name: str, limit: int) -> Flow[tuple[Waiter, ...]]:
        return listing.queue(self._keys, check_name(name), values.count("limit", limit))

    def history(self, name: str | None = None, limit: int = 100) -> tuple[Event, ...]:
        """What happened lately, to one lock or to all, the latest first: at most `limit` events,
        and no more than ``REDISLOCK_HISTORY`` allows to be kept."""
        return self._run(self._history(name, limit))

    async def ahistory(self, name: str | None = None, limit: int = 100) -> tuple[Event, ...]:
        """See history()."""
        return await self._arun(self._history(name, limit))

    def _history(self, name: str | None, limit: int) -> Flow[tuple[Event, ...]]:
        checked = None if name is None else check_name(name)
        return past.history(self._keys, checked, values.count("limit", limit))

    def rates(self) -> Rates:
        """How often locks were acquired, refused and lost in each minute of the last hour."""
        return self._run(past.rates(self._keys))

    async def arates(self) -> Rates:
        """See rates()."""
        return await self._arun(past.rates(self._keys))

    def force_release(self, name: str, token: str | None = None, *, user: object = None) -> int:
        """Release a lock for its holders, and say how many were released.

        With `token`, only that token's holder, if it still holds. A holder learns of it at
        its next renewal, and may work on until then: this can't stop it. `user` is passed
        on to the signal `lock_force_released`.
        """
        gone = self._run(self._force(name, token))
        return self._tell_forced(name, gone, user)

    async def aforce_release(
        self, name: str, token: str | None = None, *, user: object = None
    ) -> int:
        """See force_release()."""
        gone = await self._arun(self._force(name, token))
        return self._tell_forced(name, gone, user)

    def release_for(self, name: str, token: str, *, at_least_for: Seconds = 0) -> bool:
        """Release a lock in the stead of a holder that is known to be gone, by its token, and
        say whether it still held. To a holder that lives it is what `force_release` is."""
        keys, stays = (
            self._keys.of(check_name(name)),
            values.at_least("at_least_for", at_least_for),
        )
        return self._run(
            flows.release(keys, values.reported_token("token", token), at_least_for=stays)
        )

    def _force(self, name: str, token: str | None) -> Flow[tuple[str, ...]]:
        keys = self._keys.of(check_name(name))
        chosen = None if token is None else values.reported_token("token", token)
        return flows.force_release(keys, chosen)

    def _tell_forced(self, name: str, tokens: tuple[str, ...], user: object) -> int:
        if tokens:
            lock_force_released.send_robust(
                sender=type(self), using=self.alias, name=name, tokens=tokens, user=user
            )
        return len(tokens)

    def _server(self) -> Server:
        return server(self.alias)

    @property
    def _keys(self) -> Keys:
        return self._server().keys

    def _run(self, flow: Flow[T]) -> T:
        return run(self._server().client, flow)

    async def _arun(self, flow: Flow[T]) -> T:
        return await arun(await self._server().async_client(), flow)

    def ping(self, *, timeout: Seconds = 2) -> float:
        """Acquire and release a lock of a name of its own, and say how many seconds that took.

        Raises redis-py's errors within about `timeout` seconds if no lock can be had: the server
        is away, hangs, is read-only or out of memory, or refuses scripts. Nothing is left
        behind, and no two pings wait for each other.
        """
        return self._run(ping(self._server(), thread_book, values.lease("timeout", timeout)))

    async def aping(self, *, timeout: Seconds = 2) -> float:  # noqa: ASYNC109  as its twin
        """See ping()."""
        limit = values.lease("timeout", timeout)
        return await self._arun(ping(self._server(), loop_book, limit))

    def health(self, *, timeout: Seconds = 5) -> Health:
        """Whether locking works now, and on what it stands: findings, some with a warning.

        A server that is away or refuses something is a finding and no error. It takes about
        `timeout` seconds at most, and some 20 round trips.
        """
        server, limit = self._server(), values.lease("timeout", timeout)
        try:
            return run(server.client, examine(server, thread_book, limit))
        # A Cluster's client asks for its nodes when it is made, and some can't be made at all.
        except (ConnectionError, ImproperlyConfigured) as error:
            return unreached(server, error)

    async def ahealth(self, *, timeout: Seconds = 5) -> Health:  # noqa: ASYNC109  as its twin
        """See health()."""
        server, limit = self._server(), values.lease("timeout", timeout)
        try:
            return await arun(await server.async_client(), examine(server, loop_book, limit))
        except (ConnectionError, ImproperlyConfigured) as error:
            return unreached(server, error)


def _filter(pattern: str | None, kind: str | None) -> Callable[[LockInfo], bool]:
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(map(repr, KINDS))}, got {kind!r}")
    _check_pattern(pattern)
    matches = matcher(pattern)
    return lambda info: (kind is None or info.kind == kind) and matches(info.name)


def _check_pattern(pattern: str | None) -> None:
    if pattern is not None and not isinstance(pattern, str):
        raise TypeError(f"pattern must be a str, got {pattern!r}")


locks = LockManager()
"""The manager of ``REDISLOCK_CACHE``."""
