"""The locks: one idea a file. `base` is what users call and `core` how it is done, the same for
all. `mutex`, `semaphore` and `readwrite` say only their kind, capacity and weight; `many` is
several mutexes at once; `quorum` is a mutex on several servers; `on_client` is one on a client
that somebody else made; `place` is a
holding that no process keeps; `transactions` is what locks know of the database's, `telling` what
is told of them by signals. `with_block` detects the end of a ``with`` block.
`calling_task` makes an async method act for the task that calls it."""

from .base import BaseLock
from .core import Options
from .multi_lock import Many
from .mutex import Mutex
from .queue_lock import Place
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
    "Many",
    "Mutex",
    "Options",
    "Place",
    "Quorum",
    "ReadLock",
    "Semaphore",
    "WriteLock",
]
