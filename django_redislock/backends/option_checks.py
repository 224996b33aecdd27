"""The options of a client's connections, at which redis-py looks when it makes the first, or
connects it."""

from collections.abc import Callable
from typing import Any, TypeAlias

from redis.exceptions import RedisError

Options: TypeAlias = dict[str, tuple[Callable[[Any], bool], str]]
"""By name: what is right, and how that is told."""


def refuse_mistaken_options(client: Any) -> None:
    """Raise `ValueError`, or what else to make a connection would raise, but for a pool that has
    a way of its own."""
    pool: Any = getattr(client, "connection_pool", None)
    make = getattr(type(pool), "make_connection", None)
    if getattr(make, "__module__", "").startswith("redis."):
        _refuse_what_is_read_later(pool, READ_BY_A_POOL)
        _refuse_what_is_read_later(_connection_of(pool), READ_LATER)


def _connection_of(pool: Any) -> Any:
    try:
        return pool.connection_class(**pool.connection_kwargs)
    except RedisError as error:  # no server has been asked yet
        raise ValueError(str(error)) from error


def _refuse_what_is_read_later(reader: Any, options: Options) -> None:
    for name, (is_right, wanted) in options.items():
        value = getattr(reader, name, None)
        if value is not None and not is_right(value):
            raise ValueError(f"{name} must be {wanted}, got {value!r}")


def _is_database(value: Any) -> bool:
    return str(value or 0).isdecimal()


def _is_timeout(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_patience(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _is_retry(value: Any) -> bool:
    return hasattr(value, "call_with_retry")


READ_LATER: Options = {
    "db": (_is_database, "a number"),
    "socket_timeout": (_is_timeout, "a number of seconds above 0"),
    "socket_connect_timeout": (_is_timeout, "a number of seconds above 0"),
    "health_check_interval": (_is_number, "a number of seconds"),
    "retry": (_is_retry, "a Retry of redis-py"),
}
"""What a connection takes as it comes, and fails by when it connects; None is always right."""

READ_BY_A_POOL: Options = {
    "timeout": (_is_patience, "a number of seconds, at least 0"),
}
"""The same of a blocking pool, which fails by it when it is asked for a connection."""
