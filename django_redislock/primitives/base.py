"""What every lock does: acquire, keep, release. In the shape of redis-py's Lock."""

import asyncio
import copy
import inspect
import logging
import math
import uuid
from collections.abc import Callable, Mapping
from functools import partial, wraps
from types import TracebackType
from typing import Any, ClassVar, Literal, ParamSpec, Self, TypedDict, TypeVar, cast
from weakref import ref

from redis.exceptions import RedisError

from .. import clock, values
from ..conf import conf
from ..connection import Server
from ..engine import flows, listing
from ..engine.drivers import arun, run
from ..engine.lease import Lease, forget, held_by_caller, remember
from ..engine.ops import Flow
from ..engine.renewal import Book, loop_book, thread_book
from ..exceptions import LockError, LockLost, LockNotOwnedError
from ..holder import Owner, current_owner, info_text
from ..names import Template, arguments, check_name
from ..signals import lock_lost
from ..values import Seconds
from . import transactions

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger("django_redislock")


class Options(TypedDict, total=False):
    """What every lock can be told; see `LockManager.lock`."""

    timeout: Seconds | None
    blocking: bool
    blocking_timeout: Seconds | None
    auto_renewal: bool
    reentrant: bool
    at_least_for: Seconds
    release_on_commit: bool | str
    metadata: Mapping[str, Any] | None
    on_lost: "Callable[[Lock], object] | Literal['abort'] | None"


class Lock:
    """A lock by name, to be used with ``with``, ``async with``, as a decorator or by hand.

    One object can be used by many threads, asyncio tasks or greenlets: each has its
    own holding. Numbers are seconds. `timeout` is the lease: the longest that the lock
    stays if the holder dies. While the holder lives it is renewed (`auto_renewal`).
    """

    kind: ClassVar[str]
    capacity: int
    weight: int

    def __init__(
        self,
        server: Callable[[], Server],
        name: str,
        *,
        timeout: Seconds | None = None,
        blocking: bool = True,
        blocking_timeout: Seconds | None = None,
        auto_renewal: bool = True,
        reentrant: bool = False,
        at_least_for: Seconds = 0,
        release_on_commit: bool | str = False,
        metadata: Mapping[str, Any] | None = None,
        on_lost: Callable[["Lock"], object] | Literal["abort"] | None = None,
    ) -> None:
        self.name = check_name(name)
        self.timeout = (
            values.lease("REDISLOCK_TIMEOUT", conf.timeout)
            if timeout is None
            else values.lease("timeout", timeout)
        )
        self.blocking = values.flag("blocking", blocking)
        self.blocking_timeout = values.wait("blocking_timeout", blocking_timeout)
        self.auto_renewal = values.flag("auto_renewal", auto_renewal)
        self.reentrant = values.flag("reentrant", reentrant)
        self.at_least_for = values.at_least("at_least_for", at_least_for)
        self.release_on_commit = values.database("release_on_commit", release_on_commit)
        self.metadata = values.metadata("metadata", metadata)
        self.on_lost = values.on_lost("on_lost", on_lost)
        self._server = server
        self._leases: dict[Owner, list[Lease]] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    # What it knows without asking Redis

    @property
    def token(self) -> str | None:
        """The owner's token while it is held, fresh for each acquisition."""
        lease = self._known()
        return lease.token if lease else None

    @property
    def fence_token(self) -> int | None:
        """The fencing token while it is held: above that of every holding before it."""
        lease = self._known()
        return lease.fence_token if lease else None

    @property
    def lost(self) -> bool:
        """Whether it was acquired and is lost: its lease ran out or somebody took it away.

        Judged on this process's own clock, so it is also true after a pause, before
        anything could be asked of Redis.
        """
        lease = self._known()
        return lease.lost if lease else False

    def assert_held(self) -> None:
        """Raise `LockLost` if it is lost, `LockNotOwnedError` unless its caller holds it."""
        self._mine("Cannot rely on")

    # What it does, in both colours

    def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: Seconds | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Hold it, and say whether that succeeded.

        Waits in a queue, first come, first served, for at most `blocking_timeout`
        seconds (None: for ever), or not at all if `blocking` is False. `token` is the
        owner's, if it must be a certain one; it must never be used twice at a time.

        Raises redis-py's `ConnectionError` or `TimeoutError` if Redis is away, and then
        leaves nothing behind.
        """
        until = self._until(blocking, blocking_timeout)
        book = thread_book(self._server())
        return run(book.server.client, self._acquire(book, until, token))

    async def aacquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: Seconds | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """See acquire()."""
        self._refuse_async()
        until = self._until(blocking, blocking_timeout)
        book = loop_book(self._server())
        return await arun(await book.server.async_client(), self._acquire(book, until, token))

    def release(self) -> None:
        """Let go of it, for the next who waits.

        Raises `LockLost` if it was lost meanwhile, `LockNotOwnedError` if it is not this
        thread's, task's or greenlet's.
        """
        lease = self._mine("Cannot release", lost=True)
        database = self.release_on_commit
        deferred = database and not lease.lost and transactions.is_open(database)
        self._forget_entry(lease)
        if database and deferred:
            lease.deferred += 1
            transactions.when_it_ends(database, partial(self._release_late, lease))
            return
        transactions.warn_if_open(self.name)
        run(lease.server.client, self._release(lease))

    async def arelease(self) -> None:
        """See release()."""
        lease = self._mine("Cannot release", lost=True)
        self._forget_entry(lease)
        await arun(await lease.server.async_client(), self._release(lease))

    def extend(self, additional_time: Seconds, replace_ttl: bool = False) -> Literal[True]:
        """Add seconds to its lease or, with `replace_ttl`, let it run that long from now."""
        lease = self._mine("Cannot extend")
        return run(lease.server.client, self._extend(lease, additional_time, replace_ttl))

    async def aextend(self, additional_time: Seconds, replace_ttl: bool = False) -> Literal[True]:
        """See extend()."""
        lease = self._mine("Cannot extend")
        flow = self._extend(lease, additional_time, replace_ttl)
        return await arun(await lease.server.async_client(), flow)

    def reacquire(self) -> Literal[True]:
        """Let its lease run for `timeout` from now."""
        return self.extend(self.timeout, replace_ttl=True)

    async def areacquire(self) -> Literal[True]:
        """See reacquire()."""
        return await self.aextend(self.timeout, replace_ttl=True)

    def locked(self) -> bool:
        """Whether anybody holds it, as Redis knows."""
        server = self._server()
        return run(server.client, self._locked(server))

    async def alocked(self) -> bool:
        """See locked()."""
        server = self._server()
        return await arun(await server.async_client(), self._locked(server))

    def owned(self) -> bool:
        """Whether its caller holds it, as Redis knows."""
        server = self._server()
        return run(server.client, self._owned(server))

    async def aowned(self) -> bool:
        """See owned()."""
        server = self._server()
        return await arun(await server.async_client(), self._owned(server))

    def __enter__(self) -> Self:
        if not self.acquire():
            raise self._not_acquired()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.release()
        except Exception as trouble:
            if error is None:
                raise
            self._left_with(trouble)

    async def __aenter__(self) -> Self:
        if not await self.aacquire():
            raise self._not_acquired()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        lease, trouble = self._callers(), None
        try:
            await self.arelease()
        except (Exception, asyncio.CancelledError) as caught:
            trouble = caught
        if lease and lease.takes_back(error, trouble):
            raise self._lost_error("Cannot go on under") from error
        if trouble and (error is None or isinstance(trouble, asyncio.CancelledError)):
            raise trouble
        if trouble:
            self._left_with(trouble)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Hold the lock around each call. Fields of its name, such as ``{site_id}``, are
        filled from the call's arguments; one that it doesn't have raises at import."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"A lock can't be put around {function!r}: a generator runs after its call ended"
            )
        lock = self._for_calls(inspect.signature(function))
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def alocked(*args: P.args, **kwargs: P.kwargs) -> Any:
                async with lock(args, kwargs):
                    return await function(*args, **kwargs)

            return cast("Callable[P, R]", alocked)

        @wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            with lock(args, kwargs):
                return function(*args, **kwargs)

        return locked

    # How, whatever the colour

    def _acquire(self, book: Book, until: float | None, token: str | bytes | None) -> Flow[bool]:
        if self._enter_again(book.server):
            return True
        self._refuse_to_wait_for_itself(book.server, until)
        lease = self._new_lease(book, token)
        want = self._want(lease)
        try:
            granted = yield from flows.acquire(want, until)
        except (GeneratorExit, LockError):
            raise
        except BaseException as error:
            if not (yield from flows.give_up(want, error)):
                lease.book.give_back(lease)
            raise
        if granted:
            self._begin(lease, granted)
        return granted is not None

    def _release(self, lease: Lease) -> Flow[None]:
        lease.entries -= 1
        if lease.entries:
            return
        # First of all, so that nothing renews it any more or takes its going for a loss.
        lease.book.remove(lease)
        lease.end()
        forget(lease)
        try:
            released = yield from flows.release(
                lease.keys, lease.token, at_least_for=lease.at_least_for
            )
        except BaseException:  # an interrupt too; what was not asked or answered is asked again
            if not lease.at_least_for:  # else its lease, which is no shorter, runs out
                lease.book.give_back(lease)
            raise
        if not released:
            raise self._found_lost(lease, "Cannot release")

    def _release_late(self, lease: Lease) -> None:
        if lease.inherited:  # the transaction is the parent's, as the lock is
            return
        lease.deferred -= 1
        try:
            run(lease.server.client, self._release(lease))
        except (RedisError, LockError) as error:
            logger.warning(
                "Lock %r could not be released after a transaction: %s", self.name, error
            )

    def _extend(
        self, lease: Lease, additional_time: Seconds, replace_ttl: bool
    ) -> Flow[Literal[True]]:
        seconds = values.lease("additional_time", additional_time)
        sent = clock.now()
        left = yield from (
            flows.renew(lease.keys, lease.token, lease.at_least(seconds), "set")
            if replace_ttl
            else flows.renew(lease.keys, lease.token, seconds, "add")
        )
        if not left:
            raise self._found_lost(lease, "Cannot extend")
        lease.keep(sent + left)
        lease.book.add(lease)
        return True

    def _locked(self, server: Server) -> Flow[bool]:
        info = yield from listing.get(server.keys, self.name)
        return bool(info and info.holders)

    def _owned(self, server: Server) -> Flow[bool]:
        lease = self._callers()
        if lease is None:
            return False
        info = yield from listing.get(server.keys, self.name)
        return bool(info and any(holding.token == lease.token for holding in info.holders))

    # Its holdings, one for each thread, task or greenlet

    def _new_lease(self, book: Book, token: str | bytes | None) -> Lease:
        return Lease(
            book.server,
            book.server.keys.of(self.name),
            uuid.uuid4().hex if token is None else values.token("token", token),
            self.timeout,
            kind=self.kind,
            weight=self.weight,
            at_least_for=self.at_least_for,
            book=book,
            renewed=self.auto_renewal,
            when_lost=partial(_tell_lost, ref(self)),
        )

    def _begin(self, lease: Lease, granted: flows.Granted) -> None:
        lease.begin(*granted)
        self._leases.setdefault(current_owner(), []).append(lease)
        remember(lease)
        lease.book.add(lease)

    def _enter_again(self, server: Server) -> bool:
        lease = held_by_caller(server, self.name)
        if lease is None or not (self.reentrant or lease.deferred):
            return False
        if lease.lost or lease.kind != self.kind or lease.weight < self.weight:
            return False
        lease.entries += 1
        self._leases.setdefault(current_owner(), []).append(lease)
        return True

    def _forget_entry(self, lease: Lease) -> None:
        leases = self._leases[current_owner()]
        leases.remove(lease)
        if not leases:
            del self._leases[current_owner()]

    def _mine(self, action: str, *, lost: bool = False) -> Lease:
        lease = self._callers()
        if lease is None:
            raise LockNotOwnedError(
                f"{action} lock {self.name!r}: its caller does not hold it", lock_name=self.name
            )
        if lease.lost and not lost:
            raise self._lost_error(action)
        return lease

    def _callers(self) -> Lease | None:
        leases = self._leases.get(current_owner())
        return leases[-1] if leases and not leases[-1].inherited else None

    def _known(self) -> Lease | None:
        """The caller's own holding, else the only one that there is: others may look on."""
        if current_owner() in self._leases or len(self._leases) != 1:
            return self._callers()
        leases = next(iter(self._leases.values()), None)
        return leases[-1] if leases and not leases[-1].inherited else None

    def _found_lost(self, lease: Lease, action: str) -> LockLost:
        lease.book.remove(lease)
        lease.lose(found_by_holder=True)
        return self._lost_error(action)

    def _lost_error(self, action: str) -> LockLost:
        return LockLost(
            f"{action} lock {self.name!r}: it was lost while it was held", lock_name=self.name
        )

    def _not_acquired(self) -> LockError:
        return LockError(
            f"Unable to acquire lock {self.name!r} within the time specified", lock_name=self.name
        )

    def _refuse_to_wait_for_itself(self, server: Server, until: float | None) -> None:
        held = held_by_caller(server, self.name)
        if until is not None or held is None or held.lost or held.kind != self.kind:
            return
        if held.weight + self.weight > self.capacity:
            raise LockError(
                f"Lock {self.name!r} is held by its caller, who would wait for ever",
                lock_name=self.name,
            )

    def _want(self, lease: Lease) -> flows.Want:
        return flows.Want(
            keys=lease.keys,
            token=lease.token,
            kind=self.kind,
            capacity=self.capacity,
            weight=self.weight,
            lease=max(self.timeout, self.at_least_for),
            info=info_text(self.metadata),
            renewed=self.auto_renewal and not self.at_least_for,
        )

    def _until(self, blocking: bool | None, blocking_timeout: Seconds | None) -> float | None:
        blocking = self.blocking if blocking is None else values.flag("blocking", blocking)
        longest = values.wait("blocking_timeout", blocking_timeout)
        if not blocking:
            return -math.inf
        longest = self.blocking_timeout if longest is None else longest
        return None if longest is None else clock.now() + longest

    def _for_calls(self, signature: inspect.Signature) -> Callable[..., "Lock"]:
        """What makes the lock for a call, from its args and kwargs."""
        template = Template(self.name, signature)

        def lock(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lock:
            return self._named(template.fill(arguments(signature, args, kwargs)))

        return lock

    def _named(self, name: str) -> Self:
        lock = copy.copy(self)
        lock.name = check_name(name)
        lock._leases = {}
        return lock

    def _refuse_async(self) -> None:
        if self.release_on_commit:
            raise TypeError("release_on_commit is for sync code: a transaction is a thread's")

    def _left_with(self, trouble: BaseException) -> None:
        # The error that ended the block says more than trouble with the lock after it.
        logger.warning(
            "Lock %r was left by an error and could not be released: %s", self.name, trouble
        )


def _tell_lost(found: "ref[Lock]", lease: Lease) -> None:
    lock = found()
    logger.error("Lock %r was lost while it was held", lease.keys.name)
    lock_lost.send_robust(
        sender=type(lock),
        lock=lock,
        name=lease.keys.name,
        token=lease.token,
        fence_token=lease.fence_token,
    )
    if lock and lock.on_lost == "abort":
        if not lease.found_by_holder:
            lease.abort()
    elif lock and callable(lock.on_lost):
        try:
            lock.on_lost(lock)
        except Exception:
            logger.exception("on_lost of lock %r failed", lease.keys.name)
