"""The class of all locks: how they are acquired, extended and released."""

import asyncio
import copy
import inspect
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from operator import attrgetter
from types import MappingProxyType
from typing import (
    Any,
    ClassVar,
    Literal,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
    Unpack,
    cast,
)
from weakref import ref

from django.core.exceptions import SynchronousOnlyOperation
from redis.exceptions import RedisError, ResponseError

from .. import clock, validators
from ..backends import Server
from ..conf import conf
from ..engine import protocol, queries
from ..engine.leases import (
    Hold,
    HoldTable,
    Lease,
    State,
    holds_of,
    leases_by_client,
    register,
    unregister,
)
from ..engine.operations import Flow, OnServer
from ..engine.outages import is_outage, log_outage, outage_pause
from ..engine.renewer import Renewer, loop_renewer, thread_renewer
from ..engine.runners import arun, run
from ..engine.store import AcquireRequest, RenewMode
from ..engine.timing import (
    CLEANUP_TIMEOUT_SECONDS,
    FINAL_REPLY_TIMEOUT_SECONDS,
    REPLY_TIMEOUT_SECONDS,
)
from ..exceptions import LockError, LockNotOwnedError
from ..identity import Owner, SharedOwner, Task, caller, current_owner, payload_text
from ..introspection import is_async, is_generator, reject_deferred_result, signature_of
from ..names import Template, check_name, is_short_name
from ..signals import LOCK_SIGNALS
from ..snapshots import LockInfo
from ..text import error_text
from ..tokens import new_stored_token
from ..validators import Seconds
from . import errors, signal_dispatch, transactions
from .calling_task import for_calling_task
from .options import OPTION_VALIDATORS, Options
from .with_block import BoundExit, ExitMethod, bound_exit

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

logger = logging.getLogger("django_redislock")

Target: TypeAlias = tuple[Server, str]
"""A server, and the name of a lock on it."""


@dataclass(slots=True)
class AcquireCall:
    """One call of `acquire()`."""

    owner: Owner
    targets: Sequence[Target]

    deadline: float | None
    """When the caller wants to give up, on the holder's clock. None means never."""

    token: str | None
    """The caller's token; None for a random one."""

    renewer: Callable[[Server, int], Renewer]

    wait_until: float | None
    """When the flow gives up: the `deadline`, or ``-inf`` if a wait would block an event loop."""

    leases: list[Lease] = field(default_factory=list)
    """All leases that the call asked for."""

    hold: Hold | None = None

    was_queued: bool = False
    """Whether a server has queued the caller."""

    def rides(self, error: Exception) -> bool:
        """Return whether the call tries again after an error, because it waits.

        A call without a limit does not before a server has queued it: see `acquire()`.
        """
        if self.wait_until is None:
            return self.was_queued and is_outage(error)
        return clock.now() < self.wait_until and is_outage(error)


class BaseLock:
    """A named lock.

    Use it in ``with`` or ``async with``, decorate a function, or call `acquire()` and `release()`.

    Many threads, asyncio tasks or greenlets can share one object: each has its own hold.
    `timeout` is the lease in seconds. The lease is renewed while the holder runs
    (`auto_renewal`), and the lock expires after `timeout` seconds if the holder dies.

    A lock type sets `kind`, `capacity`, `weight` and `needed`. If it has several leases, it
    overrides `_targets` and `_acquire_leases`.
    """

    kind: ClassVar[str]
    capacity: int
    weight: int

    needed = 1
    """How many leases a hold must have."""

    reply_timeout: float | None = None
    """Seconds to wait for a reply. None means as long as the client allows."""

    predecessor = ""
    """The token of the hold that `acquire()` takes over, or ""."""

    stored_token = ""
    """The stored token of each request, if the caller has to release it by that, or "". It must be
    random."""

    on_conflict = ""
    """The caller's reaction if the lock is refused, for the history."""

    drift: tuple[float, float] = (0.0, 0.0015)
    """The part of a lease to ignore because of clock drift, and because a server counts in whole
    milliseconds: a fraction of the lease, and seconds."""

    accepts_grants = True
    """Whether a grant that a renewal confirms later counts as acquired."""

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
        self, server: Callable[[], Server], name: str, **options: Unpack[Options]
    ) -> None:
        self.name = name if type(name) is str and is_short_name(name) else check_name(name)
        self.timeout = conf.timeout
        self._server = server
        self._holds = HoldTable()
        if options:
            self._set_options(options)

    def _set_options(self, options: Options) -> None:
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
        copied._holds = HoldTable()
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
        self._holds = HoldTable()

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
        """Acquire the lock, and return whether it was acquired.

        If the lock is not free, the caller waits in a queue. Waiters acquire the lock in the order
        in which they arrive.

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
        return self._acquire_now(deadline, checked, None)

    def _acquire_now(
        self, deadline: float | None, token: str | None, exit_method: BoundExit | None
    ) -> bool:
        who, in_loop = caller()
        owner = self._shared_owner or who
        call = AcquireCall(owner, self._targets(), deadline, token, thread_renewer, deadline)
        if in_loop and (deadline is None or deadline > clock.now()):
            # Django's own sync code makes the same exception.
            may_block = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
            call.wait_until = deadline if may_block else -math.inf
        try:
            try:
                client = self._client(call.targets[0][0])
            except RedisError as error:
                client = self._client_later(call, error)
            hold = run(client, self._acquire(call))
            if hold and exit_method:
                hold.block = exit_method.keywords["block"]
                hold.block_watch = ref(exit_method, partial(self._end_block, hold))
        except BaseException:
            self._abandon_call(call)
            raise
        return hold is not None

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
        return await self._aacquire_now(self._owner(caller), deadline, checked, None)

    async def _aacquire_now(
        self, owner: Owner, deadline: float | None, token: str | None, block: object
    ) -> bool:
        self._refuse_release_on_commit()
        call = AcquireCall(owner, self._targets(), deadline, token, loop_renewer, deadline)
        try:
            try:
                client = await self._aclient(call.targets[0][0])
            except RedisError as error:
                client = await self._aclient_later(call, error)
            hold = await arun(client, self._acquire(call))
            if hold:
                hold.block = block
        except GeneratorExit:  # the event loop is closed, so nothing can be released
            raise
        except BaseException:
            self._abandon_call(call)
            raise
        return hold is not None

    def release(self) -> None:
        """Release the lock and hand it over to the first waiter.

        Raises:
            LockLost: The lock was lost while it was held.
            LockNotOwnedError: The calling thread, task or greenlet does not hold the lock.
        """
        self._leave(self._holds.of)

    @for_calling_task
    async def arelease(self, caller: Owner) -> None:
        """Async version of `release()`."""
        self._refuse_release_on_commit()
        await self._aleave(self._holds.of(self._owner(caller)))

    def transfer(self, request: AcquireRequest) -> None:
        """Release the lock and grant it to the token of `request`; see `queue_lock`.

        A lock that was lost and is free is granted, too, before `LockLost` is raised. Raises the
        same errors as `release()`.
        """
        hold = self._found(self._holds.of(self._owner()), "transfer")
        [lease] = hold.leases
        request.predecessor = lease.token
        try:
            self._holds.remove(hold)
            end_lease(lease)
            acquired = run(self._client(hold.server), protocol.acquire(request, -math.inf))
            self._raise_if_lost(hold, [lease], [acquired is not None], "transfer")
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
        flow = self._extend(hold, additional_time, replace_ttl, "extend")
        return run(self._client(hold.server), flow)

    @for_calling_task
    async def aextend(
        self, caller: Owner, additional_time: Seconds, replace_ttl: bool = False
    ) -> Literal[True]:
        """Async version of `extend()`."""
        hold = self._require_hold("extend", caller)
        flow = self._extend(hold, additional_time, replace_ttl, "extend")
        return await self._arun(hold.server, flow)

    def reacquire(self) -> Literal[True]:
        """Set the lease to `timeout` seconds from now. Raises the same errors as `extend()`."""
        hold = self._require_hold("reacquire")
        return run(self._client(hold.server), self._extend(hold, self.timeout, True, "reacquire"))

    @for_calling_task
    async def areacquire(self, caller: Owner) -> Literal[True]:
        """Async version of `reacquire()`."""
        hold = self._require_hold("reacquire", caller)
        flow = self._extend(hold, self.timeout, True, "reacquire")
        return await self._arun(hold.server, flow)

    def locked(self) -> bool:
        """Ask Redis whether the lock is held by any holder."""
        return run(self._client(self._server()), self._locked())

    async def alocked(self) -> bool:
        """Async version of `locked()`."""
        return await self._arun(self._server(), self._locked())

    def owned(self) -> bool:
        """Ask Redis whether the caller holds the lock."""
        return run(self._client(self._server()), self._owned(self._owner()))

    @for_calling_task
    async def aowned(self, caller: Owner) -> bool:
        """Async version of `owned()`."""
        return await self._arun(self._server(), self._owned(self._owner(caller)))

    # Context manager and decorator

    def __enter__(self) -> Self:
        if not self._acquire_now(self._deadline(), None, bound_exit(self)):
            raise errors.not_acquired(
                self, run(self._client(self._server()), self._blocking_info())
            )
        return self

    @ExitMethod
    def __exit__(self, *exc: Any, block: object = None) -> None:
        try:
            self._leave(partial(self._holds.of_block, block=block))
        except Exception as release_error:
            self._raise_or_log(release_error, exc[1])

    async def __aenter__(self) -> Self:
        bound = bound_exit(self)
        block = bound.keywords["block"] if bound else None
        if not await self._aacquire_now(self._owner(), self._deadline(), None, block):
            raise errors.not_acquired(
                self, await self._arun(self._server(), self._blocking_info())
            )
        return self

    @ExitMethod
    async def __aexit__(self, *exc: Any, block: object = None) -> None:
        hold = self._holds.of_block(self._owner(), block)
        release_error: BaseException | None = None
        try:
            try:
                await self._aleave(hold)
            except (Exception, asyncio.CancelledError) as caught:
                release_error = caught
            if hold and hold.takes_back_abort(exc[1], release_error):
                release_error = errors.lost(self.name, "continue with")
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

    # How it is acquired: flows for both runners

    def _acquire(self, call: AcquireCall, *, sends_signals: bool = True) -> Flow[Hold | None]:
        for signal in LOCK_SIGNALS:
            if sends_signals and signal.receivers:
                flow = self._acquire(call, sends_signals=False)
                return (yield from signal_dispatch.send_while(self, call, flow))
        try:
            leases = yield from self._acquire_leases(call, call.targets)
        except GeneratorExit:
            raise
        except BaseException:
            yield from self._release_unused(call.leases)
            raise
        if not leases:
            if call.wait_until != call.deadline:
                raise SynchronousOnlyOperation(
                    f"You cannot wait for lock {self.name!r} in a thread with a running event "
                    "loop, because that blocks the loop. Use 'async with' or "
                    "'await lock.aacquire()', or call this code with sync_to_async()."
                )
            return None
        server = call.targets[0][0]
        call.hold = Hold(call.owner, server, leases, self.needed, ref(self))
        call.hold.enter()
        self._holds.append(call.hold)
        if len(self._holds) > 1:
            self._holds.remove_of_dead_owners()
        return call.hold

    def _acquire_leases(
        self, call: AcquireCall, targets: Sequence[Target]
    ) -> Flow[Sequence[Lease]]:
        """Return the leases of a hold, or none if the lock was not acquired in time.

        Here it is one lease: one of the caller, which enters it again, or a new one.
        """
        [(server, name)] = targets
        own, elsewhere = leases_by_client(call.owner, server, name)
        if elsewhere:
            [own] = yield from self._own_leases(call, targets)
        for lease in own:
            if self._can_reenter(lease):
                return (lease,)
        if own and self._waits_for_itself(own, call):
            raise errors.already_held(self, name, call.owner, own)
        token = self.stored_token or new_stored_token(call.token)
        lease = self._new_lease(call, server, name, token)
        acquired = yield from self._acquire_lease(call, lease, call.wait_until)
        return (lease,) if acquired else ()

    def _acquire_lease(
        self, call: AcquireCall, lease: Lease, deadline: float | None
    ) -> Flow[bool]:
        """Acquire a new lease, and leave nothing behind if that fails."""
        renewer = lease.renewer
        request = self._request_for(lease, call)
        try:
            acquired = yield from protocol.acquire(request, deadline)
            if acquired and not acquired.is_confirmed and not renewer.ensure_running():
                request.renewal_confirms_grant = False  # the second call confirms the grant
                acquired = yield from protocol.acquire(request, deadline)
            if acquired is None:
                if request.may_arrive_late:
                    release_in_background(lease, unused=True)
                lease.end()
                return False
            lease.begin(
                acquired.fence_token, acquired.deadline, is_confirmed=acquired.is_confirmed
            )
            register(lease, call.owner)
            renewer.watch(lease)
        except (GeneratorExit, LockError):
            end_lease(lease)
            raise
        except BaseException as error:
            end_lease(lease)
            released = False
            try:
                released = yield from protocol.cleanup_failed_acquire(request, error)
            finally:  # a second interrupt or cancellation may end that, too
                if not released:
                    release_in_background(lease, unused=True)
            raise
        finally:
            call.was_queued |= request.was_queued
        if lease.state is State.ENDED:  # the caller was interrupted in another thread
            yield from self._release_lease(lease, unused=True)
            return False
        return True

    def _new_lease(self, call: AcquireCall, server: Server, name: str, token: str) -> Lease:
        lease = Lease(
            server,
            server.keys.of(name),
            token,
            seconds=self.timeout,
            owner=ref(call.owner),
            kind=self.kind,
            weight=self.weight,
            is_renewed=self.auto_renewal,
            at_least_for=self.at_least_for,
            max_hold=math.inf if self.max_hold is None else self.max_hold,
            min_replicas=self.min_replicas,
            drift=self.drift,
            reply_timeout=self.reply_timeout,
            renewer=call.renewer(server, self.min_replicas),
            on_lost=signal_dispatch.report_loss,
        )
        call.leases.append(lease)
        return lease

    def _request_for(self, lease: Lease, call: AcquireCall) -> AcquireRequest:
        # An `at_least_for` that is longer than the timeout is the first lease. Renewals do not
        # extend it, so Redis does not show them before it has passed.
        is_late = self.auto_renewal and self.at_least_for > self.timeout
        return AcquireRequest(
            keys=lease.keys,
            token=lease.token,
            kind=self.kind,
            capacity=self.capacity,
            weight=self.weight,
            lease=max(self.timeout, self.at_least_for),
            payload=payload_text(
                self.metadata,
                renewed="later" if is_late else self.auto_renewal,
                on_conflict=self.on_conflict,
                task=self.task,
                owner=call.owner,
            ),
            renewal_confirms_grant=(
                self.accepts_grants and self.auto_renewal and not self.at_least_for
            ),
            reply_timeout=self.reply_timeout,
            predecessor=self.predecessor,
            min_replicas=self.min_replicas,
            rides_outages=self.rides_outages,
            was_queued=call.was_queued,
        )

    def _own_leases(self, call: AcquireCall, targets: Sequence[Target]) -> Flow[list[list[Lease]]]:
        """Return the leases by which the caller holds each target.

        The caller can hold it through another client or another cache alias of the same server. If
        that would decide what happens next, the server is asked for the tokens of its holders.
        """
        found = [leases_by_client(call.owner, server, name) for server, name in targets]
        own = [leases for leases, _ in found]
        unclear = [self._unclear_leases(call, *each) for each in found]
        asked = [place for place, leases in enumerate(unclear) if leases]
        if asked:
            limit = REPLY_TIMEOUT_SECONDS if self.reply_timeout is None else self.reply_timeout
            flows = [
                (server, queries.get(server.keys, name, limit))
                for server, name in [targets[place] for place in asked]
            ]
            infos = yield from self._gather(flows, 0)
            for place, info in zip(asked, infos, strict=True):
                tokens = {holding.stored_token for holding in info.holders} if info else set()
                own[place] += [lease for lease in unclear[place] if lease.token in tokens]
        return own

    def _unclear_leases(
        self, call: AcquireCall, own: Sequence[Lease], elsewhere: Sequence[Lease]
    ) -> list[Lease]:
        """Return leases through other clients that would decide what happens next, if they are
        leases of the target."""
        if any(map(self._can_reenter, own)):
            return []
        # The servers of a quorum have locks with the same keys and the same token.
        servers = [server for server, _ in call.targets]
        leases = [lease for lease in elsewhere if lease.server not in servers]
        matters = any(map(self._can_reenter, leases))
        return leases if matters or self._waits_for_itself([*own, *leases], call) else []

    def _can_reenter(self, lease: Lease) -> bool:
        """Return whether the caller, which holds the lease, may enter it again."""
        wanted = self.reentrant or lease.pending_commits
        fits = lease.kind == self.kind and lease.weight >= self.weight
        safe = lease.min_replicas >= self.min_replicas
        return bool(wanted and fits and safe and not lease.lost)

    def _waits_for_itself(self, own: Sequence[Lease], call: AcquireCall) -> bool:
        if call.deadline is not None or isinstance(call.owner, SharedOwner):
            return False
        if call.owner is not self._owner():
            return False  # Another task waits for the owner, which can still release the lock.
        # A lease that is not renewed expires while the caller waits.
        weight = sum(
            lease.weight
            for lease in own
            if lease.kind == self.kind and lease.is_renewed and not lease.lost
        )
        return weight > 0 and weight + self.weight > self.capacity

    # How it is released, and what happens after an error or an interrupt
    #
    #   release(), the end of a block   _leave, _aleave -> _release -> _release_lease
    #   a commit                        _release_after_commit -> _release -> _release_lease
    #   a failed acquisition            _release_unused -> _release_lease, without a cooldown
    #   an error or an interrupt        _abandon (a hold), _abandon_call (an acquisition) or
    #                                   _end_block (a block without a call of __exit__)
    #                                   -> release_in_background: the renewer releases it

    def _leave(self, find_hold: Callable[[Owner], Hold | None]) -> None:
        """Release a hold. It is found inside the `try`, because an interrupt may come before."""
        database, hold = self.release_on_commit, None
        try:
            hold = self._found(find_hold(self._owner()), "release")
            self._holds.remove(hold)
            if database and not hold.lost and transactions.is_open(database):
                for lease in hold.leases:
                    lease.pending_commits += 1
                transactions.when_it_ends(database, partial(self._release_after_commit, hold))
                return
            # Warn after the release, because a waiter waits for it.
            if run(self._client(hold.server), self._release(hold)):
                transactions.warn_if_open(self.name)
        except BaseException as error:
            if hold is None and not isinstance(error, LockNotOwnedError):  # an interrupt
                hold = self._holds.of(self._owner())
            if hold:
                self._abandon(hold)
            raise

    async def _aleave(self, found: Hold | None) -> None:
        hold = self._found(found, "release")
        try:
            self._holds.remove(hold)
            await self._arun(hold.server, self._release(hold))
        except BaseException:
            self._abandon(hold)
            raise

    def _release_after_commit(self, hold: Hold) -> None:
        if hold.is_inherited:  # the transaction and the lock belong to the parent process
            return
        try:
            for lease in hold.leases:
                lease.pending_commits -= 1
            run(self._client(hold.server), self._release(hold))
        except BaseException as error:
            self._abandon(hold)
            if not isinstance(error, RedisError | LockError):
                raise
            logger.warning(
                "Lock not released after transaction: name=%r error=%s",
                *(self.name, error_text(error)),
            )

    def _release(self, hold: Hold) -> Flow[bool]:
        """Leave a hold, and return whether that released the lock: another hold may use it."""
        leases = hold.leave()
        enough = len(leases) - self.needed + 1  # then fewer than needed may still be held
        flows = [(lease.server, self._release_lease(lease)) for lease in leases]
        try:
            results = yield from self._gather(flows, enough)
            self._raise_if_lost(hold, leases, results, "release")
            return bool(leases)
        finally:
            signal_dispatch.released(self, hold)

    def _release_lease(self, lease: Lease, *, unused: bool = False) -> Flow[bool]:
        """Release a lease and return whether it was held. An unused one has no cooldown."""
        at_least_for = 0 if unused else lease.at_least_for
        try:
            end_lease(lease)
            return (
                yield from protocol.release(
                    lease.keys,
                    lease.token,
                    at_least_for=at_least_for,
                    fence_token=lease.fence_token,
                    killed=self.killed,
                    reply_timeout=lease.reply_timeout
                    or (CLEANUP_TIMEOUT_SECONDS if unused else None),
                )
            )
        except BaseException:
            release_in_background(lease, unused=unused)
            raise

    def _release_unused(self, leases: Sequence[Lease]) -> Flow[None]:
        """Release leases that no hold uses. The renewal releases what fails here."""
        unused = _unused(leases)
        for lease in unused:  # an interrupted flow in another thread then releases its own
            end_lease(lease)
        granted = [lease for lease in unused if lease.fence_token]
        flows = [(lease.server, self._release_lease(lease, unused=True)) for lease in granted]
        try:
            yield from self._gather(flows, 0)
        except BaseException as error:
            for lease in granted:  # some flows may not have begun
                release_in_background(lease, unused=True)
            if not isinstance(error, RedisError):
                raise

    def _abandon_call(self, call: AcquireCall) -> None:
        """Leave nothing behind after an acquisition that an error or an interrupt ended."""
        if call.hold:
            self._abandon(call.hold, unused=True)
        for lease in _unused(call.leases):
            release_in_background(lease, unused=True)

    def _abandon(self, hold: Hold, *, unused: bool = False) -> None:
        """Release in the background what an error or an interrupt kept from being released."""
        self._holds.remove(hold)
        for lease in hold.leave():
            if lease.state is not State.ENDED:
                release_in_background(lease, unused=unused)
        signal_dispatch.released(self, hold)

    def _end_block(self, hold: Hold, exit_method: "ref[BoundExit]") -> None:
        """Abandon the hold of a ``with`` block that ended without a call of `__exit__`."""
        if not hold.is_inherited:
            self._abandon(hold)

    # How its lease is set, and what Redis knows

    def _extend(
        self, hold: Hold, additional_time: Seconds, replace_ttl: bool, action: str
    ) -> Flow[Literal[True]]:
        now = clock.now()
        remaining = 0.0 if replace_ttl else max(lease.remaining(now) for lease in hold.leases)
        seconds = validators.extension("additional_time", additional_time, remaining)
        flows = [
            (lease.server, self._extend_lease(lease, seconds, replace=replace_ttl))
            for lease in hold.leases
        ]
        results = yield from self._gather(flows, self.needed)
        self._raise_if_lost(hold, hold.leases, results, action)
        return True

    def _extend_lease(self, lease: Lease, seconds: float, *, replace: bool) -> Flow[bool]:
        """Change when the lease ends, and return whether it is still held.

        The end is calculated here, so that a client that repeats the request adds nothing.
        """
        renewer, sent_at = lease.renewer, clock.now()
        mode: RenewMode = "set" if replace else "renew"
        ttl: float | None = None
        wanted = (
            lease.apply_at_least_for(seconds) if replace else lease.remaining(sent_at) + seconds
        )
        wanted = min(wanted, lease.max_deadline - sent_at)
        if replace:
            request = lease.begin_set(wanted, sent_at)
            renewer.watch(lease)
        try:
            ttl = yield from protocol.renew(
                lease.keys,
                lease.token,
                wanted,
                mode,
                reply_timeout=lease.reply_timeout,
                min_replicas=lease.min_replicas,
            )
        finally:
            if replace:
                lease.end_set(request, has_reply=ttl is not None)
        if ttl:
            lease.apply_extension(sent_at, min(ttl, wanted))
            renewer.watch(lease)
        return ttl > 0

    def _raise_if_lost(
        self, hold: Hold, leases: Sequence[Lease], results: Sequence[bool | None], action: str
    ) -> None:
        """Record which leases were lost. Raises `LockLost` if too few are left."""
        for lease, is_held in zip(leases, results, strict=True):
            if is_held is False:
                lease.renewer.forget(lease)
                lease.mark_lost(found_by_holder=True)
        if hold.lost:
            raise errors.lost(self.name, action)

    def _locked(self) -> Flow[bool]:
        return self._is_held((yield from self._snapshots(self.reply_timeout)))

    def _snapshots(self, reply_timeout: float | None) -> Flow[list[LockInfo]]:
        flows = [
            (server, queries.get(server.keys, name, reply_timeout))
            for server, name in self._targets()
        ]
        infos = yield from self._gather(flows, self.needed)
        return [info for info in infos if info]

    def _is_held(self, infos: Sequence[LockInfo]) -> bool:
        return any(info.holders for info in infos)

    def _owned(self, owner: Owner) -> Flow[bool]:
        hold = self._holds.of(owner)
        if hold is None:
            return False
        tokens = {lease.token for lease in hold.leases}
        infos = yield from self._snapshots(self.reply_timeout)
        held = [any(each.stored_token in tokens for each in info.holders) for info in infos]
        return held.count(True) >= self.needed

    def _gather(self, flows: Sequence[OnServer[T]], enough: int) -> Flow[list[T | None]]:
        """Return the results of all flows.

        If Redis replies with an error, the other flows still run, and then the error is raised. If
        Redis does not reply, or after an interrupt, the error is raised at once. `enough` is for
        lock types that tolerate errors.
        """
        results: list[T | None] = []
        first_error: ResponseError | None = None
        for _, flow in flows:
            try:
                results.append((yield from flow))
            except ResponseError as error:
                first_error = first_error or error
        if first_error:
            try:
                raise first_error
            finally:
                del first_error  # see `run()` of the runners
        return results

    # The servers, the owner and the deadline

    def _targets(self) -> Sequence[Target]:
        return [(self._server(), self.name)]

    _client: Callable[[Server], Any] = staticmethod(attrgetter("client"))
    """Return the client that runs the flows. Raises redis-py's `ConnectionError`."""

    async def _aclient(self, server: Server) -> Any:
        return await server.async_client()

    async def _arun(self, server: Server, flow: Flow[T]) -> T:
        return await arun(await self._aclient(server), flow)

    def _client_later(self, call: AcquireCall, error: Exception) -> Any:
        """Return the client when it can connect, if the call waits for that."""
        failures = 1
        while True:
            time.sleep(self._pause(call, error, failures))
            try:
                return self._client(call.targets[0][0])
            except RedisError as latest:
                failures, error = failures + 1, latest

    async def _aclient_later(self, call: AcquireCall, error: Exception) -> Any:
        """Async version of `_client_later()`."""
        failures = 1
        while True:
            await asyncio.sleep(self._pause(call, error, failures))
            try:
                return await self._aclient(call.targets[0][0])
            except RedisError as latest:
                failures, error = failures + 1, latest

    def _pause(self, call: AcquireCall, error: Exception, failures: int) -> float:
        """Return the seconds until the next attempt. Raise the error if there is none."""
        if not call.rides(error):
            raise error
        if failures == 1:
            log_outage(self.name, error)
        left = math.inf if call.wait_until is None else call.wait_until - clock.now()
        return max(0, min(outage_pause(failures), left))

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

    def _visible_hold(self) -> Hold | None:
        return self._holds.visible_to(self._owner())

    def _require_hold(self, action: str, caller: "Owner | None" = None) -> Hold:
        """Return the caller's hold. Raises `LockLost` if it was lost."""
        hold = self._found(self._holds.of(self._owner(caller)), action)
        if hold.lost:
            raise errors.lost(self.name, action)
        return hold

    def _found(self, hold: Hold | None, action: str) -> Hold:
        if hold is None:
            raise errors.not_owned(self.name, action)
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

    def _blocking_info(self) -> Flow[LockInfo | None]:
        """Return a snapshot of the lock that is in the way, or None if Redis does not reply."""
        owner = self._owner()
        for server, name in self._targets():
            own, elsewhere = leases_by_client(owner, server, name)
            if any(map(self._can_reenter, own)):
                continue
            own_tokens = {lease.token for lease in filter(self._can_reenter, elsewhere)}
            flow = queries.get(server.keys, name, FINAL_REPLY_TIMEOUT_SECONDS)
            try:
                [info] = yield from self._gather([(server, flow)], 1)
            except RedisError:
                continue  # a quorum has other servers
            if info and info.holders:
                tokens = {holding.stored_token for holding in info.holders}
                if tokens.isdisjoint(own_tokens):
                    return info
        return None


def _unused(leases: Sequence[Lease]) -> list[Lease]:
    """Return the leases that have not ended and that no hold uses."""
    return [each for each in leases if each.state is not State.ENDED and not holds_of(each)]


def end_lease(lease: Lease) -> None:
    """Stop renewing a lease that its holder gives up."""
    lease.end()
    unregister(lease)
    lease.renewer.forget(lease)


def release_in_background(lease: Lease, *, unused: bool = False) -> None:
    """End a lease, and let its renewer release it. An unused one has no cooldown."""
    end_lease(lease)
    if unused:
        lease.at_least_for = 0
    lease.renewer.release_later(lease)
