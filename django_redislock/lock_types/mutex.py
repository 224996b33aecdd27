"""One holder at a time."""

from .base import BaseLock


class Mutex(BaseLock):
    """A lock with at most one holder. Created by `LockManager.lock`."""

    kind = "mutex"
    capacity = 1
    weight = 1
