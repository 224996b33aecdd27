"""Read-write locks: any number of readers, or one writer."""

from .. import validators
from .base import BaseLock


class ReadLock(BaseLock):
    """The read side of a read-write lock. Created by `LockManager.read_lock`."""

    kind = "readwrite"
    capacity = validators.MAX_COUNT
    weight = 1


class WriteLock(ReadLock):
    """The write side of a read-write lock. Created by `LockManager.write_lock`."""

    weight = ReadLock.capacity
