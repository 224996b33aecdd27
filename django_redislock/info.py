"""What is told of a lock: facts, as they stood in Redis at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds, as the holder said of itself when it asked for the lock."""

    host: str = ""
    """The machine's name."""

    pid: int = 0
    """The process."""

    thread: str = ""
    """The thread's name, or the asyncio task's."""

    task_name: str | None = None
    """The Celery task's name, where one asked."""

    task_id: str | None = None
    """The Celery task's id, where one asked."""


@dataclass(frozen=True, slots=True)
class Holding:
    """One holder's part in a lock."""

    token: str
    """The owner's token, fresh for each acquisition. To know it is to own the lock."""

    fence_token: int
    """The fencing token: larger than that of every holding of this lock before it."""

    weight: int
    """How much of the lock's capacity it takes."""

    timeout: float
    """The lease in seconds, as asked for; 0 once it was released and only cools down."""

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


@dataclass(frozen=True, slots=True)
class LockInfo:
    """One lock. The names of `Holding` work here too and mean the first holder (or None)."""

    name: str
    """The lock's name. Untrusted: escape it wherever it is shown."""

    kind: str
    """Which primitive: ``"mutex"``, ``"semaphore"`` or ``"readwrite"``."""

    capacity: int
    """The weight that fits in at once: 1 for a mutex, its limit for a semaphore; of a
    read-write lock a reader weighs 1 and a writer all there is."""

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
