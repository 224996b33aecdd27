"""The lock types, one file each.

`base` has what all of them share. A lock type states its kind, capacity and weight. `multi_lock`
and `quorum` have several leases. `queue_lock` is a hold without a process.
"""

from .base import BaseLock
from .multi_lock import MultiLock
from .mutex import Mutex
from .options import Options
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
    "MultiLock",
    "Mutex",
    "Options",
    "QueueLock",
    "Quorum",
    "ReadLock",
    "Semaphore",
    "WriteLock",
]
