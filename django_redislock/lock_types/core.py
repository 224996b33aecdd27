"""How a lock is acquired, renewed and released, for sync and async code."""

import asyncio
import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeAlias,
    TypedDict,
    TypeVar,
    cast,
)
from weakref import ref

from django.core.exceptions import SynchronousOnlyOperation
from redis.exceptions import RedisError

from .. import clock, validators
from ..backends import Server
from ..conf import conf
from ..engine import protocol, queries
from ..engine.holds import Hold, Holds
from ..engine.lease import Lease, held_by, remember
from ..engine.operations import Flow, OnServer
from ..engine.renewer import Book
from ..engine.runners import run
from ..exceptions import LOSS, LockError, LockLost, LockNotOwnedError
from ..identity import Owner, Renewal, SharedOwner, current_owner, info_text, running_loop
from ..keys import LockKeys
from ..names import check_name
from ..signals import lock_lost
from ..snapshots import LockInfo
from ..text import error_text
from ..validators import Seconds
from . import signal_dispatch

if TYPE_CHECKING:
    from .base import BaseLock

T = TypeVar("T")

logger = logging.getLogger("django_redislock")

Target: TypeAlias = tuple[Book, str]
"""Where one lease is asked for, and by which name."""


class Attempt(NamedTuple):
    """One call of acquire."""

    owner: Owner
    targets: Sequence[Target]

    until: float | None
    """When it gives up, on the holder's clock; None: never."""

    token: str | bytes | None
    """The owner's, if it must be a certain one."""

    got: list[Hold]
    """The hold, once there is one: an interrupt may keep it from being answered."""

    blocks_loop: bool = False
    """Whether waiting would block a running event loop, so that it is refused."""

    @property
    def deadline(self) -> float | None:
        return -math.inf if self.blocks_loop else self.until


class Options(TypedDict, total=False):
    """The options of every lock. `LockManager.lock` describes them."""

    timeout: Seconds | None
    blocking: bool
    blocking_timeout: Seconds | None
    auto_renewal: bool
    reentrant: bool
    at_least_for: Seconds
    min_replicas: int
    release_on_commit: bool | str
    metadata: Mapping[str, Any] | None
    on_lost: "Callable[[BaseLock], object] | Literal['abort'] | None"


class Core:
    """What a lock is told, and the flows that its methods drive. What a primitive differs in, it
    says in `kind`, `capacity`, `weight` and `needed`, and in the methods `_where`, `_take_all`
    and `_each`."""

    kind: ClassVar[str]
    capacity: int
    weight: int
    needed = 1
    """Of the leases that it asks for, as many must be had."""

    patience: float | None = None
    """Seconds that an answer may be late; None: as the client allows."""

    predecessor = ""
    """The token whose holding it takes over when it is acquired, if there is one."""

    on_conflict = ""
    """What its caller does if it is refused, for the history."""

    drift: tuple[float, float] = (0.0, 0.0015)
    """What to take off for clocks that drift, and for a server that counts in whole milliseconds:
    a part of the lease, and seconds."""

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
        min_replicas: int = 0,
        release_on_commit: bool | str = False,
        metadata: Mapping[str, Any] | None = None,
        on_lost: Callable[["BaseLock"], object] | Literal["abort"] | None = None,
    ) -> None:
        self.name = check_name(name)
        self.timeout = conf.timeout if timeout is None else validators.lease("timeout", timeout)
        self.blocking = validators.flag("blocking", blocking)
        self.blocking_timeout = validators.wait("blocking_timeout", blocking_timeout)
        self._check_wait(self.blocking, self.blocking_timeout)
        self.auto_renewal = validators.flag("auto_renewal", auto_renewal)
        self.reentrant = validators.flag("reentrant", reentrant)
        self.at_least_for = validators.at_least("at_least_for", at_least_for)
        self.min_replicas = validators.replicas("min_replicas", min_replicas)
        self.release_on_commit = validators.database("release_on_commit", release_on_commit)
        self.metadata = validators.metadata("metadata", metadata)
        self.on_lost = validators.on_lost("on_lost", on_lost)
        self._server = server
        self._holds = Holds()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    # What is asked of Redis

    def _acquire(self, attempt: Attempt) -> Flow[Hold | None]:
        flow = self._take_hold(attempt)
        if not signal_dispatch.anybody_listens():
            return flow
        using = ", ".join(dict.fromkeys(book.server.alias for book, _ in attempt.targets))
        return signal_dispatch.told(cast("BaseLock", self), using, flow)

    def _take_hold(self, attempt: Attempt) -> Flow[Hold | None]:
        leases = yield from self._take_all(attempt)
        if not leases:
            if attempt.blocks_loop:
                raise self._would_block_loop()
            return None
        try:
            hold = Hold(attempt.owner, leases, self.needed, ref(self), _tell_lost)
            attempt.got.append(hold)
        except BaseException:  # an interrupt
            protocol.abandon_new(leases)
            raise
        for lease in leases:
            lease.enter(hold)
        self._holds.add(hold)
        return hold

    def _take_all(self, attempt: Attempt) -> Flow[Sequence[Lease]]:
        """The leases of a hold, none if its turn did not come."""
        [target] = attempt.targets
        return self._take(attempt, target)

    def _take(self, attempt: Attempt, target: Target) -> Flow[Sequence[Lease]]:
        """The lease of one target, if its turn came."""
        owner, token = attempt.owner, attempt.token
        book, name = target
        own = held_by(owner, book.server, name)
        for lease in own:
            if self._may_enter(lease):
                return (lease,)
        if self._waits_for_itself(own, attempt):
            raise self._already_held(name, owner, own)
        lease = self._new_lease(book, name, token, owner)
        want = self._want(lease.keys, lease.token)
        if not (yield from protocol.take(lease, want, attempt.deadline)):
            return ()
        try:
            remember(lease, owner)
        except BaseException:  # an interrupt
            protocol.abandon(lease, in_vain=True)
            raise
        return (lease,)

    def _pass_on(self, hold: Hold, heir: protocol.Want) -> Flow[None]:
        [lease] = hold.leases
        self._judge(hold, [lease], [(yield from protocol.pass_on(lease, heir))], "pass on")
        signal_dispatch.released(self, hold)

    def _release(self, hold: Hold) -> Flow[None]:
        last = [lease for lease in hold.leases if lease.leave(hold)]
        enough = len(last) - self.needed + 1  # then fewer than it needs may be held yet
        wanted = [(lease.server, protocol.let_go(lease)) for lease in last]
        try:
            kept = yield from self._each(wanted, enough)
            self._judge(hold, last, kept, "release")
        finally:
            signal_dispatch.released(self, hold)

    def _release_late(self, hold: Hold) -> None:
        if hold.inherited:  # the transaction is the parent's, as the lock is
            return
        for lease in hold.leases:
            lease.deferred -= 1
        try:
            run(self._client(hold.server), self._release(hold))
        except (RedisError, LockError) as error:
            logger.warning(
                "Lock not released after transaction: name=%r error=%s",
                *(self.name, error_text(error)),
            )

    def _extend(
        self, hold: Hold, additional_time: Seconds, replace_ttl: bool, action: str
    ) -> Flow[Literal[True]]:
        left = 0.0 if replace_ttl else max(each.left(clock.now()) for each in hold.leases)
        seconds = validators.extension("additional_time", additional_time, left)
        wanted = [
            (lease.server, protocol.extend(lease, seconds, replace=replace_ttl))
            for lease in hold.leases
        ]
        kept = yield from self._each(wanted, self.needed)
        self._judge(hold, hold.leases, kept, action)
        return True

    def _judge(
        self, hold: Hold, leases: Sequence[Lease], kept: Sequence[bool | None], action: str
    ) -> None:
        for lease, still in zip(leases, kept, strict=True):
            if still is False:
                lease.book.remove(lease)
                lease.lose(found_by_holder=True)
        if hold.lost:
            raise self._lost_error(action)

    def _locked(self) -> Flow[bool]:
        asked = [
            (server, queries.get(server.keys, name, self.patience))
            for server, name in self._where()
        ]
        infos = yield from self._each(asked, self.needed)
        return self._is_held([info for info in infos if info])

    def _is_held(self, infos: Sequence[LockInfo]) -> bool:
        return any(info.holders for info in infos)

    def _owned(self, owner: Owner) -> Flow[bool]:
        hold = self._holds.of(owner)
        if hold is None:
            return False
        asked = [
            (
                lease.server,
                queries.is_held_by(lease.server.keys, lease.keys.name, lease.token, self.patience),
            )
            for lease in hold.leases
        ]
        owned = yield from self._each(asked, self.needed)
        return owned.count(True) >= self.needed

    def _each(self, wanted: Sequence[OnServer[T]], enough: int) -> Flow[list[T | None]]:
        """What each flow answers. One that fails does not keep the others, but is told then,
        even where others are `enough`."""
        answers: list[T | None] = []
        trouble: BaseException | None = None
        for _, flow in wanted:
            try:
                answers.append((yield from flow))
            except GeneratorExit:
                raise
            except BaseException as error:
                if trouble is None or not isinstance(error, Exception):
                    trouble = error
        if trouble:
            raise trouble
        return answers

    # Where it is asked for

    def _where(self) -> Sequence[tuple[Server, str]]:
        return [(self._server(), self.name)]

    def _client(self, server: Server) -> Any:
        """What drives a flow on that server. Raises redis-py's `ConnectionError`."""
        return server.client

    async def _async_client(self, server: Server) -> Any:
        """See _client()."""
        return await server.async_client()

    def _targets(self, book: Callable[[Server, str, int], Book]) -> Sequence[Target]:
        replicas = self.min_replicas
        return [(book(server, name, replicas), name) for server, name in self._where()]

    # What is held, by each thread, task or greenlet

    def _owner(self) -> Owner:
        return current_owner()

    def _acts_for(self, caller: Owner) -> Owner:
        """Return the owner for whom an async method acts: the task that called it.

        A coroutine that was made outside of this event loop acts for the task that runs it.
        """
        if isinstance(caller, asyncio.Task) and caller.get_loop() is asyncio.get_running_loop():
            return caller
        return self._owner()

    def _new_lease(self, book: Book, name: str, token: str | bytes | None, owner: Owner) -> Lease:
        return Lease(
            book,
            book.server.keys.of(name),
            os.urandom(16).hex() if token is None else validators.token("token", token),
            self.timeout,
            owner=owner,
            kind=self.kind,
            weight=self.weight,
            renewed=self.auto_renewal,
            at_least_for=self.at_least_for,
            min_replicas=self.min_replicas,
            drift=self.drift,
            patience=self.patience,
        )

    def _may_enter(self, lease: Lease) -> bool:
        """Whether the caller, whose own it is, may enter it once more."""
        wanted = self.reentrant or lease.deferred
        fits = lease.kind == self.kind and lease.weight >= self.weight
        safe = lease.min_replicas >= self.min_replicas
        return bool(wanted and fits and safe and not lease.lost)

    def _must_hold(self, action: str, *, lost: bool = False, owner: "Owner | None" = None) -> Hold:
        hold = self._holds.of(owner or self._owner())
        if hold is None:
            raise LockNotOwnedError(
                f"Cannot {action} lock {self.name!r}: this thread or task does not hold it",
                lock_name=self.name,
            )
        if hold.lost and not lost:
            raise self._lost_error(action)
        return hold

    def _own(self) -> Hold | None:
        return self._holds.of(self._owner())

    def _to_release(self, owner: Owner) -> Hold:
        hold = self._must_hold("release", lost=True, owner=owner)
        self._holds.end_early(owner, hold)
        return hold

    def _of_block(self, block: object = None) -> Hold | None:
        return self._holds.of_block(self._owner(), block)

    def _seen(self) -> Hold | None:
        return self._holds.seen_by(self._owner())

    def _lost_error(self, action: str) -> LockLost:
        return LockLost(
            f"Cannot {action} lock {self.name!r}: it was lost while it was held ({LOSS}). Another "
            "holder may be running.",
            lock_name=self.name,
        )

    def _not_acquired(self) -> LockError:
        # Without a limit, acquire() does not return before it has the lock.
        limit = self.blocking_timeout if self.blocking else None
        when = "without waiting (blocking=False)" if limit is None else f"within {limit:g} s"
        return LockError(f"Lock {self.name!r} was not acquired {when}", lock_name=self.name)

    def _already_held(self, name: str, owner: Owner, own: Iterable[Lease]) -> LockError:
        holder = "task" if isinstance(owner, asyncio.Task) else "thread"
        advice = "It would wait for itself."
        if not self.reentrant and any(lease.weight >= self.weight for lease in own):
            advice = "Use reentrant=True to acquire it again."
        return LockError(
            f"Lock {name!r} is already held by this {holder}. {advice}", lock_name=name
        )

    def _would_block_loop(self) -> SynchronousOnlyOperation:
        return SynchronousOnlyOperation(
            f"You cannot wait for lock {self.name!r} in a thread with a running event loop, "
            "because that blocks the loop. Use 'async with' or 'await lock.aacquire()', or call "
            "this code with sync_to_async()."
        )

    def _waits_for_itself(self, own: Sequence[Lease], attempt: Attempt) -> bool:
        if not own or attempt.until is not None or isinstance(attempt.owner, SharedOwner):
            return False
        if attempt.owner is not self._owner():
            return False  # Another task waits for the owner, which can still release the lock.
        # A lease that is not renewed expires while the caller waits.
        weight = sum(
            lease.weight
            for lease in own
            if lease.kind == self.kind and lease.is_renewed and not lease.lost
        )
        return weight > 0 and weight + self.weight > self.capacity

    def _want(
        self, keys: LockKeys, token: str, seconds: float | None = None, info: str = ""
    ) -> protocol.Want:
        # An `at_least_for` that is longer than the timeout is the first lease. Renewals do not
        # extend it, so Redis does not show them before it has passed.
        told: Renewal = self.auto_renewal
        if self.auto_renewal and self.at_least_for > self.timeout:
            told = "later"
        return protocol.Want(
            keys=keys,
            token=token,
            kind=self.kind,
            capacity=self.capacity,
            weight=self.weight,
            lease=max(self.timeout, self.at_least_for) if seconds is None else seconds,
            info=info or self._info(told),
            renewed=self.auto_renewal and not self.at_least_for,
            patience=self.patience,
            predecessor=self.predecessor,
            min_replicas=self.min_replicas,
        )

    def _info(self, renewed: Renewal) -> str:
        return info_text(self.metadata, renewed=renewed, on_conflict=self.on_conflict)

    def _until(self, blocking: bool | None, blocking_timeout: Seconds | None) -> float | None:
        blocking = self.blocking if blocking is None else validators.flag("blocking", blocking)
        longest = validators.wait("blocking_timeout", blocking_timeout)
        self._check_wait(blocking, longest)
        if not blocking:
            return -math.inf
        longest = self.blocking_timeout if longest is None else longest
        return None if longest is None else clock.now() + longest

    def _blocks_loop(self, until: float | None) -> bool:
        """Return whether a wait until then would block an event loop that runs in this thread."""
        waits = until is None or until > clock.now()
        # The same exception that Django makes for its own sync code.
        return waits and bool(running_loop()) and not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")

    def _check_wait(self, blocking: bool, blocking_timeout: float | None) -> None:
        """Raise `ValueError` if `blocking_timeout` would be ignored."""
        if not blocking and blocking_timeout is not None:
            raise ValueError(
                f"blocking_timeout={blocking_timeout:g} cannot be used with blocking=False, which "
                "does not wait. Omit one of the two."
            )


def _tell_lost(hold: Hold, lease: Lease, found_by_holder: bool) -> None:
    lock: BaseLock | None = hold.lock()
    using = hold.acquisition.using if hold.acquisition else lease.server.alias
    logger.error(
        "Lock lost: name=%r using=%r fence_token=%s",
        *(lease.keys.name, lease.server.alias, lease.fence_token),
    )
    signal_dispatch.tell(
        lock_lost,
        sender=type(lock),
        lock=lock,
        using=using,
        name=lease.keys.name,
        kind=lease.kind,
        acquisition=hold.acquisition,
        token=lease.token,
        fence_token=lease.fence_token,
    )
    if lock and lock.on_lost == "abort":
        if not found_by_holder:
            hold.abort()
    elif lock and callable(lock.on_lost):
        try:
            lock.on_lost(lock)
        except Exception:
            logger.exception("on_lost callback failed: name=%r", lease.keys.name)
