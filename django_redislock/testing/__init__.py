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

_HOMES = {
    "embedded_redis": ".embedded",
    "EmbeddedServer": ".server",
    "held_elsewhere": ".holding",
    "lose": ".holding",
    "alose": ".holding",
    "assert_nothing_held": ".holding",
    "conflict": ".tasks",
    "Other": ".tasks",
    "assert_skipped": ".tasks",
    "assert_retried": ".tasks",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
