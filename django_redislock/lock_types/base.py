"""The class of all locks: how they are acquired, extended and released."""

import asyncio
import copy
import inspect
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from functools import partial, wraps
from types import MappingProxyType
from typing import (
    Any,
    ClassVar,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    cast,
)
from weakref import finalize

from redis.exceptions import RedisError

from .. import clock, validators
from ..backends import Server
from ..conf import conf
from ..engine import protocol, queries, registry
from ..engine.lease import Lease, LeaseState
from ..engine.operations import Flow
from ..engine.registry import AnyHold, Hold, HoldsOfLock
from ..engine.renewer import loop_renewer, thread_renewer
from ..engine.runners import arun, run
from ..engine.store import AcquireRequest
from ..exceptions import LockError, LockNotOwnedError
from ..identity import Owner, SharedOwner, Task, caller, current_owner
from ..introspection import is_async, is_generator, reject_deferred_result, signature_of
from ..names import Template, check_name, is_short_name
from ..snapshots import LockInfo
from ..text import error_text
from ..validators import Seconds
from . import errors, signal_dispatch, transactions
from .acquisition import AcquireCall, Acquisition, AnyAcquisition
from .calling_task import for_calling_task
from .lease_flows import extend_lease, release_in_background, release_lease
from .options import OPTION_VALIDATORS, LockOptions

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

logger = logging.getLogger("django_redislock")


class BaseLock:
    """A named lock.

    Use it in ``with`` or ``async with``, decorate a function, or call `acquire()` and `release()`.
    Many threads, asyncio tasks or greenlets can share one object: each has its own hold.
    """

    # A lock type sets these three. `acquisition` has what happens between request and hold.
    kind: ClassVar[str]
    capacity: int
    weight: int

    reply_timeout: float | None = None
    """Seconds to wait for a reply. None means as long as the client allows."""

    predecessor = ""
    """The token of the hold that `acquire()` takes over, or ""."""

    took_over = False
    """Whether the last `acquire()` took over the hold of its `predecessor`."""

    stored_token = ""
    """The stored token of each request, if the caller has to release it by that, or "". It must be
    random."""

    on_conflict = ""
    """The caller's reaction if the lock is refused, for the history."""

    rides_outages = True
    """Whether each request of a caller that waits is repeated while its server is away."""

    raise_on_release_error = True
    """Whether the end of a block raises `LockError` if the lock is not held any more."""

    # The defaults of the options
    blocking = True
    blocking_timeout: float | None = None
    auto_renewal = True
    reentrant = False
    at_least_for: float = 0
    max_hold: float | None = None
    min_replicas = 0
    release_on_commit: str | None = None
    metadata: Mapping[str, Any] = MappingProxyType({})
    on_lost: "Callable[[BaseLock], object] | Literal['abort'] | None" = None

    _shared_owner: SharedOwner | None = None
    """The owner if all threads and tasks count as one holder."""

    task: Task | None = None
    """The name and id of the Celery task to record as the holder. None means the current one."""

    killed = False
    """Whether the process of the holder is being terminated, which its release records."""

    def __init__(
        self, server: Callable[[], Server], name: str, **options: Unpack[LockOptions]
    ) -> None:
        self.name = name if type(name) is str and is_short_name(name) else check_name(name)
        self.timeout = conf.timeout
        self._server = server
        self._holds = HoldsOfLock()
        if options:
            self._set_options(options)

    def _set_options(self, options: LockOptions) -> None:
        validators.check_options(type(self).__name__, options, OPTION_VALIDATORS)
        for option, value in options.items():
            if value is not None or option not in ("timeout", "max_hold"):  # None: the default
                setattr(self, option, OPTION_VALIDATORS[option](option, value))
        self._check_wait(self.blocking, self.blocking_timeout)
        if self.max_hold is None:
            return
        if not self.auto_renewal:
            raise ValueError(
                f"max_hold={self.max_hold:g} cannot be used with auto_renewal=False, because "
                "without renewal the lease expires after timeout. Omit one of the two."
            )
        validators.max_hold("max_hold", self.max_hold, self.timeout, self.at_least_for)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    # Copies

    def __copy__(self) -> Self:
        """Return a new lock with the same name and options, which nobody holds."""
        copied = object.__new__(type(self))
        vars(copied).update(vars(self))
        copied._holds = HoldsOfLock()
        if self._shared_owner:
            copied._shared_owner = SharedOwner()
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copied = self.__copy__()
        copied.metadata = copy.deepcopy(dict(self.metadata), memo)
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Return what pickle stores: the name, the options and the cache alias, but no hold."""
        if any(not (hold.is_inherited or hold.lost) for hold in self._holds.copy()):
            raise TypeError(
                f"Lock {self.name!r} cannot be pickled while it is held, because its hold belongs "
                "to one thread or task. Pickle it before it is acquired, or pickle a copy.copy() "
                "of it, which is not held."
            )
        state = vars(self).copy()
        del state["_holds"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._holds = HoldsOfLock()

    # The state of the caller's hold, without a request to Redis

    @property
    def token(self) -> str | None:
        """The lock token of the caller's hold, or None. Each acquisition has a new token.

        If the caller does not hold the lock, and one other user of this object does, it is the
        token of that user, because `on_lost` is called in another thread or task.
        """
        hold = self._visible_hold()
        return hold.token if hold else None

    @property
    def fence_token(self) -> int | None:
        """The fencing token of the caller's hold, or None. It is larger than the fencing token of
        every earlier hold of the lock. See `token` about other users of this object."""
        hold = self._visible_hold()
        return hold.fence_token if hold else None

    @property
    def lost(self) -> bool:
        """Whether the caller's hold was lost, because its lease expired, `max_hold` passed, it was
        force-released, or Redis lost it.

        The local clock decides, so it is true after a long pause of the process, before any
        request to Redis. If the caller does not hold the lock, it is true if any other user of
        this object lost the lock.
        """
        hold = self._visible_hold()
        return hold.lost if hold else self._holds.any_lost()

    def assert_held(self) -> None:
        """Check that the caller holds the lock, without a request to Redis.

        Raises:
            LockLost: The lock was lost while it was held.
            LockNotOwnedError: The caller does not hold the lock.
        """
        self._require_hold("use")

    @for_calling_task
    async def aassert_held(self, caller: Owner) -> None:
        """Async version of `assert_held()`. It makes no request either."""
        self._require_hold("use", caller)

    # Acquire and release

    def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: Seconds | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquire the lock, or wait for it in a queue, first in, first out.

        If the server is away, a call with a `blocking_timeout` tries again until its time is over,
        and then raises the last error. A call without a limit does so only after the server has
        queued it: before, it raises the error at once, because with a wrong address it would wait
        indefinitely. With ``blocking=False``, an error is raised at once.

        Args:
            blocking: Whether to wait. None means the option of the lock.
            blocking_timeout: The maximum wait in seconds. None means the option of the lock.
            token: The lock token to use instead of a random one. It is the secret of this hold,
                and no right to enter: a caller with the token of the holder waits, or is refused,
                like any other caller.

        Returns:
            Whether the lock was acquired in time.

        Raises:
            LockError: The caller holds the lock and would wait for itself, or the name is in use
                for another lock type.
            redis.exceptions.RedisError: Redis is unreachable (`ConnectionError`), did not respond
                in time (`TimeoutError`), or refuses the request. The lock is not held.
            django.core.exceptions.SynchronousOnlyOperation: The call would block a running event
                loop, and ``DJANGO_ALLOW_ASYNC_UNSAFE`` is not set.
        """
        deadline = self._deadline(blocking, blocking_timeout)
        checked = None if token is None else validators.token("token", token)
        return self._acquire_now(deadline, checked).hold is not None

    def _acquire_now(self, deadline: float | None, token: str | None) -> AnyAcquisition:
        who, in_loop = caller()
        wait_until = deadline
        if in_loop and (deadline is None or deadline > clock.now()):
            # Django's own sync code makes the same exception.
            may_block = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
            wait_until = deadline if may_block else -math.inf
        owner = self._shared_owner or who
        call = AcquireCall(owner, owner is who, deadline, token, thread_renewer, wait_until)
        acquisition = self._acquisition(call)
        try:
            client = self._client_for(acquisition)
            run(client, signal_dispatch.flow_with_signals(acquisition))
        except BaseException:
            acquisition.abandon()
            raise
        return acquisition

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
        deadline = self._deadline(blocking, blocking_timeout)
        checked = None if token is None else validators.token("token", token)
        acquisition = await self._aacquire_now(self._owner(caller), deadline, checked)
        return acquisition.hold is not None

    async def _aacquire_now(
        self, owner: Owner, deadline: float | None, token: str | None
    ) -> AnyAcquisition:
        self._refuse_release_on_commit()
        is_by_owner = owner is current_owner()  # else it has made the coroutine for another task
        call = AcquireCall(owner, is_by_owner, deadline, token, loop_renewer, deadline)
        acquisition = self._acquisition(call)
        try:
            client = await self._aclient_for(acquisition)
            await arun(client, signal_dispatch.flow_with_signals(acquisition))
        except GeneratorExit:  # the event loop is closed, so nothing can be released
            raise
        except BaseException:
            acquisition.abandon()
            raise
        return acquisition

    def release(self) -> None:
        """Release the lock and hand it over to the first waiter.

        Raises:
            LockLost: The lock was lost while it was held.
            LockNotOwnedError: The calling thread, task or greenlet does not hold the lock.
            TransactionManagementError: The lock has `release_on_commit`, and autocommit is off.
        """
        hold = None
        # An interrupt can come before the hold is found, and when a function is entered.
        try:
            hold = self._holds.of(self._owner())
            self._leave(hold)
        except BaseException as error:
            self._end_after(error, hold)
            raise

    @for_calling_task
    async def arelease(self, caller: Owner) -> None:
        """Async version of `release()`."""
        self._refuse_release_on_commit()
        await self._aleave(self._holds.of(self._owner(caller)))

    def transfer(self, request: AcquireRequest) -> None:
        """Release the lock and grant it to the token of `request`; see `queue_lock`.

        Args:
            request: The request of the next holder. Its predecessor becomes this hold.

        Raises:
            LockLost: The lock was lost while it was held. If it is free, it is granted before.
            LockNotOwnedError: The caller does not hold the lock.
        """
        hold = self._found(self._holds.of(self._owner()), "transfer")
        [part] = hold.parts
        lease = part.lease
        request.predecessor = lease.token
        try:
            self._holds.remove(hold)
            registry.remove(part)
            lease.end()
            acquired = self._run(hold.server, protocol.acquire(request, -math.inf))
            if acquired is None:
                self._lose(part)
            if hold.lost:
                raise errors.lock_lost_error(self.name, "transfer")
        except BaseException:
            release_in_background(lease)
            raise
        finally:
            signal_dispatch.released(self, hold)

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
        hold = self._require_hold("extend")
        return self._run(hold.server, self._extend(hold, additional_time, replace_ttl, "extend"))

    @for_calling_task
    async def aextend(
        self, caller: Owner, additional_time: Seconds, replace_ttl: bool = False
    ) -> Literal[True]:
        """Async version of `extend()`."""
        hold = self._require_hold("extend", caller)
        flow = self._extend(hold, additional_time, replace_ttl, "extend")
        return await self._arun(hold.server, flow)

    def reacquire(self) -> Literal[True]:
        """Set the lease to `timeout` seconds from now.

        Returns:
            True.

        Raises:
            LockLost: The lock was lost while it was held.
            LockNotOwnedError: The caller does not hold the lock.
        """
        hold = self._require_hold("reacquire")
        return self._run(hold.server, self._extend(hold, self.timeout, True, "reacquire"))

    @for_calling_task
    async def areacquire(self, caller: Owner) -> Literal[True]:
        """Async version of `reacquire()`."""
        hold = self._require_hold("reacquire", caller)
        flow = self._extend(hold, self.timeout, True, "reacquire")
        return await self._arun(hold.server, flow)

    def locked(self) -> bool:
        """Ask Redis whether the lock is held.

        Returns:
            Whether it has any holder.

        Raises:
            redis.exceptions.RedisError: Redis is unreachable, or did not respond in time.
        """
        return self._run(self._server(), self._locked())

    async def alocked(self) -> bool:
        """Async version of `locked()`."""
        return await self._arun(self._server(), self._locked())

    def owned(self) -> bool:
        """Ask Redis whether the caller holds the lock.

        Returns:
            Whether one of its holders is the caller.

        Raises:
            redis.exceptions.RedisError: Redis is unreachable, or did not respond in time.
        """
        return self._run(self._server(), self._owned(self._owner()))

    @for_calling_task
    async def aowned(self, caller: Owner) -> bool:
        """Async version of `owned()`."""
        return await self._arun(self._server(), self._owned(self._owner(caller)))

    # Context manager and decorator

    def __enter__(self) -> Self:
        acquisition = self._acquire_now(self._deadline(), None)
        if acquisition.hold is None:
            info = self._run(self._server(), acquisition.blocker())
            raise errors.not_acquired_error(self, info)
        return self

    def __exit__(self, *exc: Any) -> None:
        hold = None
        try:
            hold = self._holds.at_end_of_block(self._owner())
            self._leave(hold)
        except Exception as release_error:
            self._end_after(release_error, hold)
            self._raise_or_log(release_error, exc[1])
        except BaseException as interrupt:
            self._end_after(interrupt, hold)
            raise

    async def __aenter__(self) -> Self:
        acquisition = await self._aacquire_now(self._owner(), self._deadline(), None)
        if acquisition.hold is None:
            info = await self._arun(self._server(), acquisition.blocker())
            raise errors.not_acquired_error(self, info)
        return self

    async def __aexit__(self, *exc: Any) -> None:
        hold = self._holds.at_end_of_block(self._owner())
        release_error: BaseException | None = None
        try:
            try:
                await self._aleave(hold)
            except (Exception, asyncio.CancelledError) as caught:
                release_error = caught
            if hold and hold.takes_back_abort(exc[1], release_error):
                release_error = errors.lock_lost_error(self.name, "continue with")
                if exc[1] is not None:
                    raise release_error from exc[1]
            if release_error:
                self._raise_or_log(release_error, exc[1])
        finally:
            release_error = None  # see `run()` of the runners

    def _raise_or_log(
        self, release_error: BaseException, block_error: BaseException | None
    ) -> None:
        """Raise the error of a release, unless the error of the block is more important."""
        is_ignored = isinstance(release_error, LockError) and not self.raise_on_release_error
        is_cancelled = isinstance(release_error, asyncio.CancelledError)
        if is_cancelled or (block_error is None and not is_ignored):
            try:
                raise release_error
            finally:
                del release_error  # see `run()` of the runners
        logger.warning(
            "Lock not released at the end of its block: name=%r error=%s",
            *(self.name, error_text(release_error)),
        )

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

    def _for_calls(self, signature: inspect.Signature) -> Callable[..., "BaseLock"]:
        """Return a function that creates the lock for the args and kwargs of a call."""
        template = Template(self.name, signature)

        def lock(args: tuple[Any, ...], kwargs: dict[str, Any]) -> BaseLock:
            named = copy.copy(self)
            named.name = template.of_call(args, kwargs)
            return named

        return lock

    # How it is acquired

    def _acquisition(self, call: AcquireCall) -> AnyAcquisition:
        return Acquisition(self, call, self._server())

    def _client_for(self, acquisition: AnyAcquisition) -> Any:
        """Return the client. If it cannot connect when it is made, try again while the call
        waits."""
        failures = 0
        while True:
            try:
                return self._server().client
            except RedisError as error:
                failures += 1
                pause = acquisition.pause_after(error, failures)
            time.sleep(pause)

    async def _aclient_for(self, acquisition: AnyAcquisition) -> Any:
        """Async version of `_client_for()`."""
        failures = 0
        while True:
            try:
                return await self._server().async_client()
            except RedisError as error:
                failures += 1
                pause = acquisition.pause_after(error, failures)
            await asyncio.sleep(pause)

    def _can_reenter(self, lease: Lease) -> bool:
        """Return whether the caller, which holds the lease, may enter it again."""
        if lease.lost or lease.kind != self.kind or lease.weight < self.weight:
            return False
        if lease.min_replicas < self.min_replicas:
            return False
        if self.reentrant:
            return True
        return any(hold.whole.awaits_commit for hold in registry.holds_of(lease))

    # How it is released, and what happens after an error or an interrupt
    #
    #   release(), the end of a block   _leave, _aleave -> _release_hold -> release_lease
    #   a commit                        _release_after_commit -> _release_hold -> release_lease
    #   a failed acquisition            release_lease, without a cooldown: see `acquisition`
    #   an error or an interrupt        _abandon -> release_in_background: the renewer releases it

    def _leave(self, found: AnyHold | None) -> None:
        hold = self._found(found, "release")
        self._holds.remove(hold)
        database = self.release_on_commit
        if database and not hold.lost and transactions.is_open(database):
            hold.awaits_commit = True
            transactions.when_it_ends(database, partial(self._release_after_commit, hold))
            return
        # Warn after the release, because a waiter waits for it.
        if self._run(hold.server, self._release_hold(hold)):
            transactions.warn_if_open(self.name)

    def _end_after(self, error: BaseException, hold: AnyHold | None) -> None:
        """End a hold that an error or an interrupt kept from being released.

        Args:
            error: The error.
            hold: The hold, or None if it was not found before.
        """
        if hold is None and not isinstance(error, LockNotOwnedError):
            hold = self._holds.of(self._owner())
        if hold:
            self._abandon(hold)

    async def _aleave(self, found: AnyHold | None) -> None:
        hold = self._found(found, "release")
        try:
            self._holds.remove(hold)
            await self._arun(hold.server, self._release_hold(hold))
        except BaseException:
            self._abandon(hold)
            raise

    def _release_after_commit(self, hold: AnyHold) -> None:
        if hold.is_inherited:  # the transaction and the lock belong to the parent process
            return
        try:
            self._run(hold.server, self._release_hold(hold))
        except BaseException as error:
            self._abandon(hold)
            if not isinstance(error, RedisError | LockError):
                raise
            logger.warning(
                "Lock not released after transaction: name=%r error=%s",
                *(self.name, error_text(error)),
            )

    def _release_hold(self, hold: AnyHold) -> Flow[bool]:
        """Leave a hold, and return whether that released the lock: another hold may use it."""
        [part] = hold.parts
        try:
            is_last = registry.remove(part)
            if is_last and not (yield from release_lease(part.lease, killed=self.killed)):
                self._lose(part)
            if hold.lost:
                raise errors.lock_lost_error(self.name, "release")
            return is_last
        finally:
            signal_dispatch.released(self, hold)

    def _abandon(self, hold: AnyHold, *, unused: bool = False) -> None:
        """Release in the background what an error or an interrupt kept from being released."""
        self._holds.remove(hold)
        for part in hold.parts:
            if registry.remove(part) and part.lease.state is not LeaseState.ENDED:
                release_in_background(part.lease, unused=unused)
        signal_dispatch.released(self, hold)

    def release_when_dropped(self, thing: object) -> "finalize[..., Any]":
        """Release the lock in the background if `thing` is garbage-collected, in any thread.

        Detach the finalizer to release the lock in another way.
        """
        hold = self._found(self._holds.of(self._owner()), "use")

        def release() -> None:
            if not hold.is_inherited:  # else the lock belongs to the parent process
                self._abandon(hold)

        finalizer = finalize(thing, release)
        finalizer.atexit = False
        return finalizer

    def _lose(self, hold: Hold) -> None:
        """Record a loss that the holder finds by itself."""
        hold.lease.mark_lost()
        hold.lease.note_loss_reported()
        signal_dispatch.report_found_loss(hold)

    # How its lease is set, and what Redis knows

    def _extend(
        self, hold: AnyHold, additional_time: Seconds, replace_ttl: bool, action: str
    ) -> Flow[Literal[True]]:
        remaining = 0.0
        if not replace_ttl:
            now = clock.now()
            remaining = max(part.lease.remaining(now) for part in hold.parts)
        seconds = validators.extension("additional_time", additional_time, remaining)
        return (yield from self._extend_hold(hold, seconds, replace=replace_ttl, action=action))

    def _extend_hold(
        self, hold: AnyHold, seconds: float, *, replace: bool, action: str
    ) -> Flow[Literal[True]]:
        [part] = hold.parts
        if not (yield from extend_lease(part.lease, seconds, replace=replace)):
            self._lose(part)
        if hold.lost:
            raise errors.lock_lost_error(self.name, action)
        return True

    def _info(self) -> Flow[LockInfo | None]:
        return queries.get(self._server().keys, self.name, self.reply_timeout)

    def _locked(self) -> Flow[bool]:
        info = yield from self._info()
        return bool(info and info.holders)

    def _owned(self, owner: Owner) -> Flow[bool]:
        hold = self._holds.of(owner)
        if hold is None:
            return False
        [part] = hold.parts
        info = yield from self._info()
        holders = info.holders if info else ()
        return part.lease.token in {each.stored_token for each in holders}

    # The servers, the owner and the deadline

    def _run(self, server: Server, flow: Flow[T]) -> T:
        """Run a flow on a server. Raises redis-py's `ConnectionError`."""
        return run(server.client, flow)

    async def _arun(self, server: Server, flow: Flow[T]) -> T:
        """Async version of `_run()`."""
        return await arun(await server.async_client(), flow)

    def _aliases(self) -> str:
        """Return the cache aliases of the lock, for the signals."""
        return self._server().alias

    def _owner(self, caller: "Owner | None" = None) -> Owner:
        """Return who holds the lock: the task that called an async method, if `caller` is given.

        If a coroutine was made in another event loop, the task that runs it is the holder.
        """
        if self._shared_owner:
            return self._shared_owner
        if isinstance(caller, asyncio.Task) and caller.get_loop() is asyncio.get_running_loop():
            return caller
        return current_owner()

    def _refuse_release_on_commit(self) -> None:
        if self.release_on_commit:
            raise TypeError(
                "release_on_commit is not supported in async code. Put the lock and the "
                "transaction in one function, and call it with sync_to_async()."
            )

    def _visible_hold(self) -> AnyHold | None:
        return self._holds.visible_to(self._owner())

    def _require_hold(self, action: str, caller: "Owner | None" = None) -> AnyHold:
        """Return the caller's hold. Raises `LockLost` if it was lost."""
        hold = self._found(self._holds.of(self._owner(caller)), action)
        if hold.lost:
            raise errors.lock_lost_error(self.name, action)
        return hold

    def _found(self, hold: AnyHold | None, action: str) -> AnyHold:
        if hold is None:
            raise errors.lock_not_owned_error(self.name, action)
        return hold

    def _deadline(
        self, blocking: bool | None = None, blocking_timeout: Seconds | None = None
    ) -> float | None:
        """Return when a call gives up: None for never, ``-inf`` for a call that does not wait."""
        if blocking is None and blocking_timeout is None:
            blocking, seconds = self.blocking, self.blocking_timeout
        else:
            blocking = self.blocking if blocking is None else validators.flag("blocking", blocking)
            seconds = validators.wait("blocking_timeout", blocking_timeout)
            self._check_wait(blocking, seconds)
            seconds = self.blocking_timeout if seconds is None else seconds
        if not blocking:
            return -math.inf
        return None if seconds is None else clock.now() + seconds

    def _check_wait(self, blocking: bool, blocking_timeout: float | None) -> None:
        """Raise `ValueError` if `blocking_timeout` would be ignored."""
        if not blocking and blocking_timeout is not None:
            raise ValueError(
                f"blocking_timeout={blocking_timeout:g} cannot be used with blocking=False, which "
                "does not wait. Omit one of the two."
            )
