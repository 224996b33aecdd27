"""What a project's own tests need: a server, and locks that are in the way or get lost.

>>> from django_redislock.testing import embedded_redis, held_elsewhere

For pytest there are fixtures, see `django_redislock.testing.plugin`. Importing this package
imports neither Django nor Redis, Celery or pytest: each name below arrives when it is first
asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .embedded import embedded_redis
    from .holding import alose, held_elsewhere, lose
    from .left import assert_nothing_held
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
    "assert_nothing_held": ".left",
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
