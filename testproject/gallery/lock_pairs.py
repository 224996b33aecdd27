"""Base class of the common algorithms, and the equivalent with this package."""

from contextlib import suppress
from typing import Any
from uuid import uuid4

from django.conf import settings
from redis import Redis

from django_redislock import LockNotOwnedError, locks


class TaughtLock:
    """A client, the lock's name, a lock token, and a lease in seconds."""

    def __init__(self, name: str, lease: float) -> None:
        self.client: Any = Redis.from_url(settings.REDIS_URL, decode_responses=True)
        self.name = name
        self.token = uuid4().hex
        self.lease = lease

    @property
    def lease_ms(self) -> int:
        return round(self.lease * 1000)


class OurLock:
    def __init__(self, name: str, lease: float) -> None:
        self.lock = locks.lock(name, timeout=lease)

    def acquire(self) -> bool:
        """Acquire the lock without waiting, and return whether it was free."""
        return self.lock.acquire(blocking=False)

    def enter(self) -> None:
        """Wait for the lock and acquire it."""
        self.lock.acquire()

    def release(self) -> None:
        with suppress(LockNotOwnedError):
            self.lock.release()
