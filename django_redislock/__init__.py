"""Distributed locks and single-instance tasks for Django and Celery, on Redis or Valkey.

>>> from django_redislock import locks, single_instance

Importing this package imports neither Redis nor Celery: each name below
arrives when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .celery import single_instance
    from .exceptions import AlreadyRunning, LockError, LockLost, LockNotOwnedError, StaleLock
    from .lock_types import AsyncLock, BaseLock, Lock
    from .manager import LockManager, locks
    from .snapshots import Holder, Holding, LockInfo

__version__ = "0.1.0"

# The package has fixtures: pytest warns if it is imported before pytest, and this is not said.
__doc__ = f"{__doc__}\nPYTEST_DONT_REWRITE"

__all__ = [  # noqa: RUF022  grouped by use, not by letter
    # Locks
    "locks",
    "LockManager",
    "BaseLock",
    # Locks on any redis-py client
    "Lock",
    "AsyncLock",
    # Celery
    "single_instance",
    # What is listed
    "LockInfo",
    "Holding",
    "Holder",
    # Errors
    "LockError",
    "LockNotOwnedError",
    "LockLost",
    "AlreadyRunning",
    "StaleLock",
]

_HOMES = {
    "locks": ".manager",
    "LockManager": ".manager",
    "BaseLock": ".lock_types",
    "Lock": ".lock_types",
    "AsyncLock": ".lock_types",
    "single_instance": ".celery",
    "LockInfo": ".snapshots",
    "Holding": ".snapshots",
    "Holder": ".snapshots",
    "LockError": ".exceptions",
    "LockNotOwnedError": ".exceptions",
    "LockLost": ".exceptions",
    "AlreadyRunning": ".exceptions",
    "StaleLock": ".exceptions",
}


if not TYPE_CHECKING:  # or checkers would believe that any name is there

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
