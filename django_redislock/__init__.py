"""Distributed locks and single-instance tasks for Django and Celery, on Redis or Valkey.

>>> from django_redislock import locks, single_instance

Importing this package imports neither redis-py nor Celery: each name is imported when it is first
used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .exceptions import (
        AlreadyRunning,
        LockError,
        LockLost,
        LockNotAcquired,
        LockNotOwnedError,
        StaleLock,
    )
    from .lock_types import AsyncLock, BaseLock, Lock
    from .manager import LockManager, locks
    from .snapshots import Holder, Holding, LockInfo
    from .tasks.decorator import single_instance

__version__ = "0.1.0"

# pytest warns if a package with fixtures is imported before pytest. This text prevents that.
__doc__ = f"{__doc__}\nPYTEST_DONT_REWRITE"

__all__ = [  # noqa: RUF022  grouped by use, not by letter
    # Locks
    "locks",
    "LockManager",
    "BaseLock",
    # Locks on any redis-py client
    "Lock",
    "AsyncLock",
    # Tasks
    "single_instance",
    # Snapshots
    "LockInfo",
    "Holding",
    "Holder",
    # Errors
    "LockError",
    "LockNotAcquired",
    "LockNotOwnedError",
    "LockLost",
    "AlreadyRunning",
    "StaleLock",
]

_MODULES = {
    ".manager": ("locks", "LockManager"),
    ".lock_types": ("BaseLock", "Lock", "AsyncLock"),
    ".tasks": ("single_instance",),
    ".snapshots": ("LockInfo", "Holding", "Holder"),
    ".exceptions": (
        "LockError",
        "LockNotAcquired",
        "LockNotOwnedError",
        "LockLost",
        "AlreadyRunning",
        "StaleLock",
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:  # A type checker would accept any name.

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULE_OF[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
