"""Many readers, or one writer."""

from .. import values
from .base import BaseLock


class ReadLock(BaseLock):
    """Held beside other readers, never beside a writer. Who comes after a writer that waits,
    waits behind it: neither side starves."""

    kind = "readwrite"
    capacity = values.LARGEST_COUNT
    weight = 1


class WriteLock(ReadLock):
    """Held alone."""

    weight = ReadLock.capacity
