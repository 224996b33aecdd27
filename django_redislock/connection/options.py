"""The options of a client's connections, which redis-py looks at when it makes the first."""

from typing import Any


def refuse_unknown_options(client: Any) -> None:
    """Raise what to make a connection would raise, but for a pool that has a way of its own."""
    pool: Any = getattr(client, "connection_pool", None)
    make = getattr(type(pool), "make_connection", None)
    if getattr(make, "__module__", "").startswith("redis."):
        pool.connection_class(**pool.connection_kwargs)
