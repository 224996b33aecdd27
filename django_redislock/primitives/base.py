"""What every lock can do, in both colours, in the shape of redis-py's Lock. See `core` for how."""

import asyncio
import copy
import inspect
import logging
from collections.abc import Callable
from functools import partial, wraps
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar, cast
from weakref import ref

from ..engine import flows
from ..engine.drivers import arun, run
from ..engine.hold import Hold, Holds
from ..engine.renewal import loop_book, thread_book
from ..functions import has_run, is_async, is_generator, signature_of
from ..holder import Owner
from ..names import Template, check_name
from ..text import error_text
from ..values import Seconds
from . import telling, transactions
from .calling_task import for_calling_task
from .core import Attempt, Core
from .with_block import BoundExit, ExitMethod, bound_exit

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger("django_redislock")


class BaseLock(Core):
    """A lock by name, to be used with ``with``, ``async with``, as a decorator or by hand.

    One object can be used by many threads, asyncio tasks or greenlets: each has its
    own holding. Numbers are seconds. `timeout` is the lease: the longest that the lock
    stays if the holder dies. While the holder lives it is renewed (`auto_renewal`).
    """

    # What it knows without asking Redis

    @property
    def token(self) -> str | None:
        """The owner's token while it is held, fresh for each acquisition."""
        hold = self._seen()
        return hold.token if hold else None

    @property
    def fence_token(self) -> int | None:
        """The fencing token while it is held: above that of every holding before it."""
        hold = self._seen()
        return hold.fence_token if hold else None

    @property
    def lost(self) -> bool:
        """Whether it was acquired and is lost: its lease ran out or somebody took it away.

        Judged on this process's own clock, so it is also true after a pause, before
        anything could be asked of Redis. Where several hold it by this object, and the
        caller is none of them, it is whether any of them lost it.
        """
        hold = self._seen()
        return hold.lost if hold else self._holds.any_lost()

    def assert_held(self) -> None:
        """Raise `LockLost` if it is lost, `LockNotOwnedError` unless its caller holds it."""
        self._must_hold("rely on")

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
        owner's, if it must be a certain one; it must never be used twice at a time, and the
        cooldown of `at_least_for` is part of that time: who asks by it meanwhile is not let
        in, but stands in no queue.

        Raises redis-py's `ConnectionError` or `TimeoutError` if Redis is away, and then
        leaves nothing behind.

        Raises Django's `SynchronousOnlyOperation` if it would have to wait in a thread with a
        running event loop, unless ``DJANGO_ALLOW_ASYNC_UNSAFE`` is set.
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
        """Async version of `acquire()`. The task that calls it becomes the holder, even if another
        task runs the coroutine, as in ``asyncio.wait_for(lock.aacquire(), 5)``."""
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

        Raises `LockLost` if it was lost while it was held, and `LockNotOwnedError` if the calling
        thread, task or greenlet does not hold it.
        """
        self._leave(lambda: self._to_release(self._owner()))

    @for_calling_task
    async def arelease(self, caller: Owner) -> None:
        """Async version of `release()`."""
        await self._aleave(self._to_release(self._acts_for(caller)))

    def pass_on(self, heir: flows.Want) -> None:
        """Let go of it for the one who comes with the heir's token; see `place`. Raises as
        `release` does; but what was lost and is free is held for the heir all the same."""
        hold = self._must_hold("pass on", lost=True)
        try:
            self._holds.remove(hold)
            run(hold.server.client, self._pass_on(hold, heir))
        except BaseException:
            self._abandon(hold)
            raise

    def extend(self, additional_time: Seconds, replace_ttl: bool = False) -> Literal[True]:
        """Add seconds to its lease or, with `replace_ttl`, let it run that long from now."""
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
        """Let its lease run for `timeout` from now."""
        hold = self._must_hold("reacquire")
        return run(self._client(hold.server), self._extend(hold, self.timeout, True, "reacquire"))

    @for_calling_task
    async def areacquire(self, caller: Owner) -> Literal[True]:
        """Async version of `reacquire()`."""
        hold = self._must_hold("reacquire", owner=self._acts_for(caller))
        flow = self._extend(hold, self.timeout, True, "reacquire")
        return await arun(await self._async_client(hold.server), flow)

    def locked(self) -> bool:
        """Whether anybody holds it, as Redis knows."""
        return run(self._client(self._server()), self._locked())

    async def alocked(self) -> bool:
        """See locked()."""
        return await arun(await self._async_client(self._server()), self._locked())

    def owned(self) -> bool:
        """Whether its caller holds it, as Redis knows."""
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
            raise self._lost_error("go on under") from error
        if trouble and (error is None or isinstance(trouble, asyncio.CancelledError)):
            raise trouble
        if trouble:
            self._left_with(trouble)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Hold the lock around each call. Fields of its name, such as ``{site_id}``, are
        filled from the call's arguments; one that it doesn't have raises at import."""
        if is_generator(function):
            raise TypeError(
                f"A lock can't be put around {function!r}: a generator runs after its call ended"
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
                return has_run(function, function(*args, **kwargs))

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
                flows.abandon(lease, in_vain=in_vain)
        telling.released(self, hold)

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
        """What makes the lock for a call, from its args and kwargs."""
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
            raise TypeError("release_on_commit is for sync code: a transaction is a thread's")

    def _left_with(self, trouble: BaseException) -> None:
        # The error that ended the block says more than trouble with the lock after it.
        logger.warning(
            "Lock %r was left by an error and could not be released: %s",
            *(self.name, error_text(trouble)),
        )
