"""Snapshots of locks in Redis at one moment.

All times are aware datetimes, by the clock of Redis.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Generic, TypeVar

from django.core.exceptions import ImproperlyConfigured

from .redaction import HIDDEN
from .text import redacted_metadata

T = TypeVar("T")

STALE_AFTER = 0.5
"""The part of a lease after which a holder without a renewal is stale. Renewals are due after a
third of the lease."""


class _Described:
    """A dataclass with metadata, whose repr can get into a log."""

    __slots__ = ()

    def __repr__(self) -> str:
        shown = {each.name: getattr(self, each.name) for each in fields(self) if each.repr}  # type: ignore[arg-type]  # a subclass is a dataclass
        try:
            shown["metadata"] = redacted_metadata(shown["metadata"])
        except ImproperlyConfigured:  # of REDISLOCK_REDACT
            shown["metadata"] = HIDDEN
        values = ", ".join(f"{name}={value!r}" for name, value in shown.items())
        return f"{type(self).__name__}({values})"


@dataclass(frozen=True, slots=True)
class Holder:
    """The process, thread or task that holds or waits for a lock. It describes itself."""

    host: str = ""
    """The host name, shortened to 255 characters."""

    pid: int = 0
    """The process id."""

    thread: str = ""
    """The name of the thread or asyncio task, shortened to 255 characters."""

    task_name: str | None = None
    """The name of the task of Celery or `django.tasks`. None outside a task."""

    task_id: str | None = None
    """The id of that task. None outside a task. An id of more than 255 characters is shortened to
    its beginning and a digest, 256 characters in total."""

    process: str | None = None
    """The random id of the process. It distinguishes two processes with the same host name and
    pid. A forked child has an id of its own. None if the record does not say."""

    number: int = 0
    """The number of the thread or asyncio task in its process. It distinguishes two with the same
    name."""


@dataclass(frozen=True, slots=True, repr=False)
class Holding(_Described):
    """The hold of one holder."""

    token: str = field(repr=False)
    """The lock token, chosen by the holder or random. It proves who the holder is,
    so keep it secret."""

    stored_token: str = field(repr=False)
    """The token as Redis stores it. It differs from `token` if the holder chose that, and no other
    hold has it. Keep it secret, too."""

    fence_token: int
    """The fencing token. It is larger than the fencing token of every earlier hold of the lock."""

    weight: int
    """How much of the lock's capacity the hold takes."""

    timeout: float
    """The lease in seconds. 0 during the cooldown, after the holder has released the lock."""

    waited: float
    """The seconds for which the holder waited in the queue."""

    acquired_at: datetime
    """When the lock was acquired."""

    expires_at: datetime
    """When the lease expires unless it is renewed."""

    ttl: float
    """The seconds until the lease expires, at the time of the snapshot."""

    holder: Holder
    """The holder."""

    metadata: Mapping[str, Any]
    """The metadata of the holder. Untrusted, like the lock's name."""

    renewed: bool
    """Whether the holder renews its lease while it runs. Also False if `renews_later` is true."""

    renews_later: bool = False
    """Whether the lease is longer than `timeout`, because of `at_least_for` or `extend()`. The
    holder renews it, but Redis shows no renewal until it would end later by that."""

    unconfirmed: bool = False
    """Whether the lock is being handed over. It was granted to this waiter a moment ago, which has
    not confirmed that yet. Until then the lease lasts for 2 seconds and not for `timeout`."""

    @property
    def since_renewal(self) -> float:
        """The seconds since the last renewal, or since the acquisition if there was none."""
        # A waiter first gets a grant that is shorter than the lease.
        age = (self.expires_at - self.acquired_at).total_seconds() - self.ttl
        return max(min(self.timeout - self.ttl, age), 0.0)

    @property
    def is_stale(self) -> bool:
        """Whether the renewal is overdue. The holder is dead or paused, or cannot reach Redis.

        A hold without renewal is never stale. After `extend()` with a shorter lease, a hold can be
        stale until its next renewal.
        """
        overdue = self.since_renewal > self.timeout * STALE_AFTER
        return self.renewed and self.timeout > 0 and overdue


class _OfFirstHolder(Generic[T]):
    """A read-only attribute of `LockInfo` with the value of its first holder."""

    def __init__(self, read: Callable[[Holding], T]) -> None:
        self._read = read

    def __get__(self, info: "LockInfo", owner: type) -> T | None:
        return self._read(info.holders[0]) if info.holders else None


@dataclass(frozen=True, slots=True)
class LockInfo:
    """A snapshot of one lock.

    The attributes of `Holding`, except `since_renewal`, also exist here, with the values of the
    first holder. They are None without a holder. `is_stale` is about all holders.
    """

    name: str
    """The lock's name. It is untrusted, so escape it before you show it."""

    kind: str
    """The lock type, which is ``"mutex"``, ``"semaphore"``, ``"readwrite"`` or ``"quorum"``."""

    capacity: int
    """The maximum total weight of the holders. It is 1 for a mutex and for each server of a quorum
    lock, and the limit of a semaphore. A reader of a read-write lock has the weight 1, and a
    writer has the weight of the whole capacity."""

    state: str
    """``"held"``, ``"cooldown"`` (released, but kept for `at_least_for`) or ``"waiting"`` (between
    two holders)."""

    waiters: int
    """The number of waiters with a recent heartbeat, and of tasks that wait without a process."""

    longest_wait: float
    """The seconds for which the first of these waiters had waited, at the time of the snapshot. 0
    without a waiter."""

    holders: tuple[Holding, ...] = ()
    """The holds, the earliest acquisition first."""

    @property
    def first(self) -> Holding | None:
        """The first holder, or None."""
        return self.holders[0] if self.holders else None

    token = _OfFirstHolder(lambda holding: holding.token)
    stored_token = _OfFirstHolder(lambda holding: holding.stored_token)
    fence_token = _OfFirstHolder(lambda holding: holding.fence_token)
    weight = _OfFirstHolder(lambda holding: holding.weight)
    timeout = _OfFirstHolder(lambda holding: holding.timeout)
    waited = _OfFirstHolder(lambda holding: holding.waited)
    acquired_at = _OfFirstHolder(lambda holding: holding.acquired_at)
    expires_at = _OfFirstHolder(lambda holding: holding.expires_at)
    ttl = _OfFirstHolder(lambda holding: holding.ttl)
    holder = _OfFirstHolder(lambda holding: holding.holder)
    metadata = _OfFirstHolder(lambda holding: holding.metadata)
    renewed = _OfFirstHolder(lambda holding: holding.renewed)
    renews_later = _OfFirstHolder(lambda holding: holding.renews_later)
    unconfirmed = _OfFirstHolder(lambda holding: holding.unconfirmed)

    @property
    def is_stale(self) -> bool:
        """Whether the renewal of any holder is overdue."""
        return any(holding.is_stale for holding in self.holders)


@dataclass(frozen=True, slots=True, repr=False)
class Waiter(_Described):
    """One waiter in the queue of a lock."""

    since: datetime
    """When the waiter joined the queue."""

    waited: float
    """The seconds for which the waiter had waited, at the time of the snapshot."""

    weight: int
    """How much of the lock's capacity the waiter will take."""

    timeout: float
    """The lease in seconds that the waiter will get."""

    holder: Holder
    """The process, thread or task that waits."""

    metadata: Mapping[str, Any]
    """The metadata of the waiter. Untrusted."""

    stored_token: str = field(default="", repr=False)
    """The token of a task that waits in the queue without a process. To release it removes the
    task from the queue. Empty for any other waiter."""

    @property
    def is_stored(self) -> bool:
        """Whether this is a task that was sent with ``on_conflict="queue"``."""
        return bool(self.stored_token)


@dataclass(frozen=True, slots=True, repr=False)
class Event(_Described):
    """An event of the history: a hold that ended, or an acquisition that was refused."""

    name: str
    """The lock's name. Untrusted."""

    kind: str
    """The lock type."""

    outcome: str
    """How the hold ended.

    - ``"released"``: The holder released the lock.
    - ``"passed"``: Another hold of the same task took over the lock, such as its retry.
    - ``"expired"``: The lease expired.
    - ``"lost"``: The holder found that it had lost the lock.
    - ``"forced"``: The lock was force-released.
    - ``"killed"``: The holder had died or was terminated, and its Celery worker released the lock.
      This needs the prefork pool. If the whole worker dies, the lease expires.
    - ``"refused"``: The lock was not acquired. A task can run again later.
    - ``"skipped"``: The lock was not acquired, and the task was skipped.
    """

    at: datetime
    """When the event happened."""

    acquired_at: datetime | None
    """When the lock was acquired. None if it was not acquired, or if only the loss is known."""

    waited: float
    """The seconds of the wait in the queue."""

    held: float
    """The seconds of the hold. 0 if the lock was not acquired, or if only the loss is known."""

    fence_token: int | None
    """The fencing token of the hold. None if the lock was not acquired, or if only the loss is
    known."""

    weight: int
    """How much of the lock's capacity was held or requested. 0 if unknown."""

    holder: Holder
    """The process, thread or task."""

    metadata: Mapping[str, Any]
    """The metadata of the holder. Untrusted."""

    by: str = ""
    """Who force-released the lock, if that was said. Untrusted."""

    reason: str = ""
    """Why the lock was force-released, if that was said. Untrusted."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The number of events in each of the last 60 minutes, the current minute last."""

    minutes: tuple[datetime, ...]
    """When each minute began."""

    counts: Mapping[str, tuple[int, ...]]
    """The events per minute of ``"acquired"``, ``"refused"``, ``"expired"``, ``"forced"``,
    ``"lost"`` and ``"killed"``. A hold counts only once as one of the last four. If the holder
    finds out that its lease has expired, the hold counts as ``"lost"`` instead."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some of the held locks."""

    infos: tuple[LockInfo, ...]
    """The locks, sorted by when their leases expire."""

    total: int
    """How many locks match in total."""
