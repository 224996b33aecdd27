"""The methods of every lock, sync and async, in the shape of redis-py's Lock."""

import asyncio
import copy
import inspect
import logging
from collections.abc import Callable
from functools import partial, wraps
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar, cast
from weakref import ref

from ..engine import protocol
from ..engine.holds import Hold, Holds
from ..engine.renewer import loop_book, thread_book
from ..engine.runners import arun, run
from ..identity import Owner
from ..introspection import is_async, is_generator, reject_deferred_result, signature_of
from ..names import Template, check_name
from ..text import error_text
from ..validators import Seconds
from . import signal_dispatch, transactions
from .calling_task import for_calling_task
from .core import Attempt, Core
from .with_block import BoundExit, ExitMethod, bound_exit

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger("django_redislock")


class BaseLock(Core):
    """A named lock for ``with``, ``async with``, as a decorator, or with `acquire()` and
    `release()`.

    Many threads, asyncio tasks or greenlets can share one object: each has its own hold.
    `timeout` is the lease in seconds. The lease is renewed while the holder runs
    (`auto_renewal`), and the lock expires after `timeout` seconds if the holder dies.
    """

    # Make no request to Redis

    @property
    def token(self) -> str | None:
        """The lock token of the caller's hold, or None. Each acquisition has a new token."""
        hold = self._seen()
        return hold.token if hold else None

    @property
    def fence_token(self) -> int | None:
        """The fencing token of the caller's hold, or None. It is larger than the fencing token of
        every earlier hold of the lock."""
        hold = self._seen()
        return hold.fence_token if hold else None

    @property
    def lost(self) -> bool:
        """Whether the caller's hold was lost (expired, force-released, or lost by Redis).

        The local clock decides, so it is true after a long pause of the process, before any
        request to Redis. If the caller does not hold the lock, it is true if any other user of
        this object lost the lock.
        """
        hold = self._seen()
        return hold.lost if hold else self._holds.any_lost()

    def assert_held(self) -> None:
        """Check that the caller holds the lock, without a request to Redis.

        Raises:
            LockLost: The lock was lost while it was held.
            LockNotOwnedError: The caller does not hold the lock.
        """
        self._must_hold("use")

    # Send commands to Redis

    def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: Seconds | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquire the lock, and return whether it was acquired.

        If the lock is not free, the caller waits in a queue. Waiters acquire the lock in the order
        in which they arrive.

        Args:
            blocking: Whether to wait. None means the option of the lock.
            blocking_timeout: The maximum wait in seconds. None means the option of the lock.
            token: The lock token to use instead of a random one. Do not use a token twice at the
                same time. The cooldown of `at_least_for` counts as use: with the same token,
                `acquire()` returns False during the cooldown.

        Raises:
            LockError: The caller holds the lock and would wait for itself, or the name is in use
                for another lock type.
            redis.exceptions.ConnectionError: Redis is unreachable. The lock is not held.
            redis.exceptions.TimeoutError: Redis did not respond in time. The lock is not held.
            django.core.exceptions.SynchronousOnlyOperation: The call would block a running event
                loop, and ``DJANGO_ALLOW_ASYNC_UNSAFE`` is not set.
        """
        until, owner = self._until(blocking, blocking_timeout), self._owner()
        blocks_loop = self._blocks_loop(until)
        attempt = Attempt(owner, self._targets(thread_book), until, token, [], blocks_loop)
        try:
            client = self._client(attempt.targets[0][0].server)
            return run(client, self._acquire(attempt)) is not None
        except BaseException:
            for hold in attempt.got:  # an interrupt just when it was acquired
                self._abandon(hold, in_vain=True)
            raise

    @for_calling_task
    async def aacquire(
        self,
        caller: Owner,
        blocking: bool | None = None,
        blocking_timeout: Seconds | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Async version of `acquire()`.

        The task that calls it becomes the holder, even if another task runs the coroutine, as in
        ``asyncio.wait_for(lock.aacquire(), 5)``.
        """
        self._refuse_async()
        until, owner = self._until(blocking, blocking_timeout), self._acts_for(caller)
        attempt = Attempt(owner, self._targets(loop_book), until, token, [])
        client = await self._async_client(attempt.targets[0][0].server)
        try:
            return await arun(client, self._acquire(attempt)) is not None
        except BaseException:
            for hold in attempt.got:
                self._abandon(hold, in_vain=True)
            raise

    def release(self) -> None:
        """Release the lock and hand it over to the first waiter.

        Raises:
            LockLost: The lock was lost while it was held.
            LockNotOwnedError: The calling thread, task or greenlet does not hold the lock.
        """
        self._leave(lambda: self._to_release(self._owner()))

    @for_calling_task
    async def arelease(self, caller: Owner) -> None:
        """Async version of `release()`."""
        await self._aleave(self._to_release(self._acts_for(caller)))

    def pass_on(self, heir: protocol.Want) -> None:
        """Release the lock and grant it to the lock token of `heir`; see `place`.

        A lock that was lost and is free is granted, too. Raises the same errors as `release()`.
        """
        hold = self._must_hold("pass on", lost=True)
        try:
            self._holds.remove(hold)
            run(hold.server.client, self._pass_on(hold, heir))
        except BaseException:
            self._abandon(hold)
            raise

    def extend(self, additional_time: Seconds, replace_ttl: bool = False) -> Literal[True]:
        """Extend the lease, or set it with `replace_ttl`.

        Args:
            additional_time: The seconds to add to the lease. The lease can be up to 10 years.
            replace_ttl: If true, the lease expires `additional_time` seconds from now.

        Returns:
            True.

        Raises:
            LockLost: The lock was lost while it was held.
            LockNotOwnedError: The caller does not hold the lock.
        """
        hold = self._must_hold("extend")
        flow = self._extend(hold, additional_time, replace_ttl, "extend")
        return run(self._client(hold.server), flow)

    @for_calling_task
    async def aextend(
        self, caller: Owner, additional_time: Seconds, replace_ttl: bool = False
    ) -> Literal[True]:
        """Async version of `extend()`."""
        hold = self._must_hold("extend", owner=self._acts_for(caller))
        flow = self._extend(hold, additional_time, replace_ttl, "extend")
        return await arun(await self._async_client(hold.server), flow)

    def reacquire(self) -> Literal[True]:
        """Set the lease to `timeout` seconds from now. Raises the same errors as `extend()`."""
        hold = self._must_hold("reacquire")
        return run(self._client(hold.server), self._extend(hold, self.timeout, True, "reacquire"))

    @for_calling_task
    async def areacquire(self, caller: Owner) -> Literal[True]:
        """Async version of `reacquire()`."""
        hold = self._must_hold("reacquire", owner=self._acts_for(caller))
        flow = self._extend(hold, self.timeout, True, "reacquire")
        return await arun(await self._async_client(hold.server), flow)

    def locked(self) -> bool:
        """Ask Redis whether the lock is held by any holder."""
        return run(self._client(self._server()), self._locked())

    async def alocked(self) -> bool:
        """Async version of `locked()`."""
        return await arun(await self._async_client(self._server()), self._locked())

    def owned(self) -> bool:
        """Ask Redis whether the caller holds the lock."""
        return run(self._client(self._server()), self._owned(self._owner()))

    @for_calling_task
    async def aowned(self, caller: Owner) -> bool:
        """Async version of `owned()`."""
        client = await self._async_client(self._server())
        return await arun(client, self._owned(self._acts_for(caller)))

    def __enter__(self) -> Self:
        bound = bound_exit(self)
        if not self.acquire():
            raise self._not_acquired()
        try:
            self._begin_block(bound)
        except BaseException:
            self._abandon_own()  # an interrupt
            raise
        return self

    @ExitMethod
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        *,
        block: object = None,
    ) -> None:
        try:
            self._leave(lambda: self._of_block(block) or self._must_hold("release"))
        except Exception as trouble:
            if error is None:
                raise
            self._left_with(trouble)

    async def __aenter__(self) -> Self:
        if not await self.aacquire():
            raise self._not_acquired()
        try:
            self._holds.begin_block(self._owner())
        except BaseException:
            self._abandon_own()  # an interrupt
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        hold, trouble = self._of_block(), None
        try:
            await self._aleave(hold or self._must_hold("release"))
        except (Exception, asyncio.CancelledError) as caught:
            trouble = caught
        if hold and hold.takes_back(error, trouble):
            raise self._lost_error("continue with") from error
        if trouble and (error is None or isinstance(trouble, asyncio.CancelledError)):
            raise trouble
        if trouble:
            self._left_with(trouble)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function: each call acquires the lock first.

        Fields in the lock's name, such as ``{site_id}``, get their values from the arguments of
        the call.

        Args:
            function: A synchronous function or a coroutine function.

        Raises:
            django.core.exceptions.ImproperlyConfigured: The name has a field that is not a
                parameter of the function.
            TypeError: The function is a generator function.
        """
        if is_generator(function):
            raise TypeError(
                f"A lock cannot decorate the generator function {function!r}: its body runs after "
                "the lock is released. Acquire the lock inside the function."
            )
        lock = self._for_calls(signature_of(function))
        if is_async(function):

            @wraps(function)
            async def alocked(*args: P.args, **kwargs: P.kwargs) -> Any:
                async with lock(args, kwargs):
                    return await function(*args, **kwargs)

            return cast("Callable[P, R]", alocked)

        @wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            with lock(args, kwargs):
                return reject_deferred_result(function, function(*args, **kwargs))

        return locked

    # How it is left, and called

    def _leave(self, found: Callable[[], Hold]) -> None:
        database, hold = self.release_on_commit, None
        try:
            hold = found()
            deferred = database and not hold.lost and transactions.is_open(database)
            self._holds.remove(hold)
            if database and deferred:
                self._defer(hold, database)
                return
            run(self._client(hold.server), self._release(hold))
            transactions.warn_if_open(self.name)  # after it, as somebody waits for it
        except BaseException:  # an interrupt may strike before it is found
            if hold := hold or self._own():
                self._abandon(hold)
            raise

    async def _aleave(self, hold: Hold) -> None:
        try:
            self._holds.remove(hold)
            await arun(await self._async_client(hold.server), self._release(hold))
        except BaseException:
            self._abandon(hold)
            raise

    def _defer(self, hold: Hold, database: str) -> None:
        for lease in hold.leases:
            lease.deferred += 1
        transactions.when_it_ends(database, partial(self._release_late, hold))

    def _abandon(self, hold: Hold, *, in_vain: bool = False) -> None:
        """Leave to the renewal what an error, or an interrupt, kept from being released."""
        self._holds.remove(hold)
        for lease in hold.leases:
            if lease.leave(hold) and not lease.over:
                protocol.abandon(lease, in_vain=in_vain)
        signal_dispatch.released(self, hold)

    def _abandon_own(self) -> None:
        if hold := self._own():
            self._abandon(hold, in_vain=True)

    def _begin_block(self, bound: BoundExit | None) -> None:
        """Record that the caller acquired the lock by a ``with`` statement."""
        owner = self._owner()
        if bound is None:
            self._holds.begin_block(owner)
        else:
            watch = ref(bound, self._end_block)
            self._holds.begin_block(owner, bound.keywords["block"], watch)

    def _end_block(self, watch: "ref[BoundExit]") -> None:
        """Abandon the hold of a ``with`` block that ended without a call of `__exit__`."""
        hold = self._holds.watched_by(watch)
        if hold and not hold.inherited:
            self._abandon(hold)

    def _for_calls(self, signature: inspect.Signature) -> Callable[..., "BaseLock"]:
        """Return a function that creates the lock for the args and kwargs of a call."""
        template = Template(self.name, signature)

        def lock(args: tuple[Any, ...], kwargs: dict[str, Any]) -> BaseLock:
            return self._named(template.of_call(args, kwargs))

        return lock

    def _named(self, name: str) -> Self:
        lock = copy.copy(self)
        lock.name = check_name(name)
        lock._holds = Holds()
        return lock

    def _refuse_async(self) -> None:
        if self.release_on_commit:
            raise TypeError(
                "release_on_commit is not supported in async code. Put the lock and the "
                "transaction in one function, and call it with sync_to_async()."
            )

    def _left_with(self, trouble: BaseException) -> None:
        # The error that ended the block says more than trouble with the lock after it.
        logger.warning(
            "Lock not released after an exception in its block: name=%r error=%s",
            *(self.name, error_text(trouble)),
        )
