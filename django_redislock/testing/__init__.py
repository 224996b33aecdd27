"""The testing kit: an embedded server, locks that are held elsewhere, and locks that are lost.

>>> from django_redislock.testing import embedded_redis, held_elsewhere

`django_redislock.testing.plugin` has fixtures for pytest. The import of this package does not
import Django, Redis, Celery or pytest: each name is imported at its first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .embedded import embedded_redis
    from .holding import alose, assert_nothing_held, held_elsewhere, lose
    from .server import EmbeddedServer
    from .tasks import Other, assert_retried, assert_skipped, conflict

__all__ = [  # noqa: RUF022  grouped by use, not by letter
    # A server
    "embedded_redis",
    "EmbeddedServer",
    # Locks
    "held_elsewhere",
    "lose",
    "alose",
    "assert_nothing_held",
    # Tasks
    "conflict",
    "Other",
    "assert_skipped",
    "assert_retried",
]

_MODULES = {
    ".embedded": ("embedded_redis",),
    ".server": ("EmbeddedServer",),
    ".holding": ("held_elsewhere", "lose", "alose", "assert_nothing_held"),
    ".tasks": ("conflict", "Other", "assert_skipped", "assert_retried"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module, __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
