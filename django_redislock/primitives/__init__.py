"""The locks: one idea a file. `base` is the policy that all share; each of the others
says only its kind, its capacity and its weight."""

from .base import Lock, Options
from .many import Many
from .mutex import Mutex
from .readwrite import ReadLock, WriteLock
from .semaphore import Semaphore

__all__ = ["Lock", "Many", "Mutex", "Options", "ReadLock", "Semaphore", "WriteLock"]
