"""What is told of a lock: facts, as they stood in Redis at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

STALE_AFTER = 0.5
"""The part of a lease without a renewal after which one is overdue: it is due after a third."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds, as the holder said of itself when it asked for the lock."""

    host: str = ""
    """The machine's name, at most 255 characters of it."""

    pid: int = 0
    """The process."""

    thread: str = ""
    """The name of the thread or of the asyncio task, at most 255 characters of it."""

    task_name: str | None = None
    """The Celery task's name, where one asked."""

    task_id: str | None = None
    """The id of the Celery task, if a task asked. Of an id of more than 255 characters it has the
    beginning and a digest, 256 characters in all."""

    process: str | None = None
    """The random id of the process. It tells apart two processes that have the same host name and
    pid. A forked child has an id of its own. None if an older release wrote the record."""


@dataclass(frozen=True, slots=True)
class Holding:
    """One holder's part in a lock."""

    token: str = field(repr=False)
    """The lock token, new for each acquisition. Keep it secret: it proves who the holder is."""

    fence_token: int
    """The fencing token: larger than that of every holding of this lock before it."""

    weight: int
    """How much of the lock's capacity it takes."""

    timeout: float
    """The lease in seconds, as asked for; 0 once it was released and only cools down."""

    waited: float
    """Seconds that it stood in the queue before."""

    acquired_at: datetime
    """When it was acquired; aware, by Redis's clock."""

    expires_at: datetime
    """When the lease runs out unless it is renewed; aware, by Redis's clock."""

    ttl: float
    """Seconds of the lease that were left when this was read."""

    holder: Holder
    """Who holds."""

    metadata: Mapping[str, Any]
    """What the holder chose to tell. Untrusted, like the lock's name."""

    renewed: bool
    """Whether the holder renews its lease for as long as it runs. Also False if `renews_later`."""

    renews_later: bool = False
    """Whether the lease is an `at_least_for` that is longer than `timeout`. The holder renews it,
    but Redis does not show that before the `at_least_for` has passed."""

    @property
    def since_renewal(self) -> float:
        """Seconds since its lease was last renewed or, if it was not yet, it was acquired.

        Who was let in from the queue has a short claim first, and not yet a full lease.
        """
        age = (self.expires_at - self.acquired_at).total_seconds() - self.ttl
        return max(min(self.timeout - self.ttl, age), 0.0)

    @property
    def is_stale(self) -> bool:
        """Whether its renewal is overdue: the holder is dead, paused, or can't reach Redis.

        One that is not renewed is never stale: it just runs down. One that was made shorter by
        ``replace_ttl`` may count as overdue until its next renewal.
        """
        overdue = self.since_renewal > self.timeout * STALE_AFTER
        return self.renewed and self.timeout > 0 and overdue


@dataclass(frozen=True, slots=True)
class LockInfo:
    """One lock. The names of `Holding` work here too and mean the first holder (or None)."""

    name: str
    """The lock's name. Untrusted: escape it wherever it is shown."""

    kind: str
    """Which primitive: ``"mutex"``, ``"semaphore"``, ``"readwrite"`` or ``"quorum"``."""

    capacity: int
    """The weight that fits in at once: 1 for a mutex and for each server of a quorum,
    its limit for a semaphore; of a read-write lock a reader weighs 1 and a writer all there is."""

    state: str
    """``"held"``; ``"cooldown"``, released but kept for its `at_least_for`; or ``"waiting"``, in
    the moment between two holders."""

    waiters: int
    """How many wait and have shown life lately."""

    holders: tuple[Holding, ...] = ()
    """Who holds, the earliest acquisition first."""

    @property
    def first(self) -> Holding | None:
        return self.holders[0] if self.holders else None

    @property
    def token(self) -> str | None:
        return self.first.token if self.first else None

    @property
    def fence_token(self) -> int | None:
        return self.first.fence_token if self.first else None

    @property
    def weight(self) -> int | None:
        return self.first.weight if self.first else None

    @property
    def timeout(self) -> float | None:
        return self.first.timeout if self.first else None

    @property
    def waited(self) -> float | None:
        return self.first.waited if self.first else None

    @property
    def renewed(self) -> bool | None:
        return self.first.renewed if self.first else None

    @property
    def renews_later(self) -> bool | None:
        return self.first.renews_later if self.first else None

    @property
    def is_stale(self) -> bool:
        """Whether any of its holders' renewals is overdue."""
        return any(holding.is_stale for holding in self.holders)

    @property
    def acquired_at(self) -> datetime | None:
        return self.first.acquired_at if self.first else None

    @property
    def expires_at(self) -> datetime | None:
        return self.first.expires_at if self.first else None

    @property
    def ttl(self) -> float | None:
        return self.first.ttl if self.first else None

    @property
    def holder(self) -> Holder | None:
        return self.first.holder if self.first else None

    @property
    def metadata(self) -> Mapping[str, Any] | None:
        return self.first.metadata if self.first else None


@dataclass(frozen=True, slots=True)
class Waiter:
    """One who stands in a lock's queue."""

    since: datetime
    """When it came; aware, by Redis's clock."""

    waited: float
    """Seconds that it had waited when this was read."""

    weight: int
    """How much of the lock's capacity it wants."""

    timeout: float
    """The lease in seconds that it asks for."""

    holder: Holder
    """Who waits."""

    metadata: Mapping[str, Any]
    """What it chose to tell. Untrusted."""


@dataclass(frozen=True, slots=True)
class Event:
    """A holding that is over, or an acquisition that was refused."""

    name: str
    """The lock's name. Untrusted."""

    kind: str
    """Which primitive it was."""

    outcome: str
    """How it ended: ``"released"``; ``"passed"``, on to the one who took over; ``"expired"``, its
    lease ran out; ``"lost"``, likewise, or to a failure, and its holder was alive and came to
    release it; ``"forced"``, by an operator; ``"refused"``, it was not acquired; ``"skipped"``,
    likewise, by a task that then ended without having run."""

    at: datetime
    """When that was; aware, by Redis's clock."""

    acquired_at: datetime | None
    """When it was acquired; None if it never was, or nothing is known but its loss."""

    waited: float
    """Seconds that it stood in the queue."""

    held: float
    """Seconds from when it was acquired until it ended; 0 if it never was."""

    fence_token: int | None
    """Its fencing token, if it was held."""

    weight: int
    """How much of the lock's capacity it took, or wanted; 0 if that is not known."""

    holder: Holder
    """Who it was."""

    metadata: Mapping[str, Any]
    """What it chose to tell. Untrusted."""


@dataclass(frozen=True, slots=True)
class Rates:
    """How often something happened in each of the last 60 minutes, the running one last."""

    minutes: tuple[datetime, ...]
    """When each minute began; aware, by Redis's clock."""

    counts: Mapping[str, tuple[int, ...]]
    """``"acquired"``, ``"refused"``, ``"expired"``, ``"forced"``, ``"lost"``: a count a minute.
    A holding that expired, or was forced to end, and whose holder came to release it counts as
    ``"lost"`` too, in the minute in which it came."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some of the locks that are held."""

    infos: tuple[LockInfo, ...]
    """Those whose leases end first come first."""

    total: int
    """How many there are that match."""
