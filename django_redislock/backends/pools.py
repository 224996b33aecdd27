"""Connection pools of redis-py, and of others."""

from typing import Any


def is_made_by_redis_py(pool: Any) -> bool:
    """Return whether redis-py, and no subclass, makes the pool's connections.

    Only then its class and its options are all that is needed to make another one.
    """
    make = getattr(type(pool), "make_connection", None)
    return getattr(make, "__module__", "").startswith("redis.")
