"""The lock types, one file each.

`base` has what all of them share. A lock type states its kind, capacity and weight. `multi_lock`
and `quorum` are compositions of ordinary locks. `queue_lock` is a hold without a process.
"""

from .base import BaseLock
from .multi_lock import MultiLock
from .mutex import Mutex
from .options import LockOptions
from .queue_lock import QueueLock
from .quorum import Quorum
from .read_write import ReadLock, WriteLock
from .redis_py import AsyncLock, Lock
from .semaphore import Semaphore
from .transactions import Atomic

__all__ = [
    "AsyncLock",
    "Atomic",
    "BaseLock",
    "Lock",
    "LockOptions",
    "MultiLock",
    "Mutex",
    "QueueLock",
    "Quorum",
    "ReadLock",
    "Semaphore",
    "WriteLock",
]
