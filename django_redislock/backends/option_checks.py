"""Check LOCATION and OPTIONS of a cache alias, without a connection.

redis-py itself checks some of them only when it connects.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured
from redis.connection import parse_url
from redis.exceptions import RedisError

from .pools import is_made_by_redis_py


def check_location(addresses: Sequence[object], options: Mapping[str, Any]) -> None:
    """Check the addresses in LOCATION.

    An address is also invalid if its password is not percent-encoded, because redis-py would use a
    part of the password as the host, the port or the next address.

    Raises:
        ImproperlyConfigured: An address is invalid. The message does not contain the address.
    """
    if not addresses:
        raise ImproperlyConfigured("LOCATION has no address.")
    # Sentinels know a service by any name. Other names must be valid host names.
    by_sentinels = "sentinel_manager" in options or "SENTINELS" in options
    for address in map(str, addresses):
        if not _is_valid(address, by_sentinels):
            raise ImproperlyConfigured(
                "An address in LOCATION is invalid. It must begin with redis://, rediss:// or "
                "unix://, and all characters of the user name and the password except letters "
                "and digits must be percent-encoded."
            )


def _is_valid(address: str, by_sentinels: bool) -> bool:
    try:
        parts = urlsplit(address)
        parse_url(address)  # type: ignore[no-untyped-call]
        if not by_sentinels:
            (parts.hostname or "").encode("idna")
    except ValueError:
        return False
    if parts.scheme == "unix":
        return not parts.netloc or parts.netloc.endswith("@")
    # The user name and password end with an @ before all other parts. The value of an option in
    # the query can contain an @.
    is_option = "=" in parts.query.partition("@")[0]
    return "@" not in parts.path + parts.fragment + ("" if is_option else parts.query)


def check_options(client: Any) -> None:
    """Check the options of a client's connections. It makes a connection object, unconnected.

    A client is not checked if its pool makes connections in its own way.

    Raises:
        ValueError: An option has an invalid value.
        TypeError: An option is unknown, or has the wrong type.
    """
    pool: Any = getattr(client, "connection_pool", None)
    if not is_made_by_redis_py(pool):
        return
    try:
        connection = pool.connection_class(**pool.connection_kwargs)
    except RedisError as error:
        raise ValueError(str(error)) from error
    if not str(connection.db or 0).isdecimal():
        raise ValueError(f"db must be a number, got {connection.db!r}")
    for owner, name, minimum in (
        (pool, "timeout", 0),
        (connection, "socket_timeout", 0.001),
        (connection, "socket_connect_timeout", 0.001),
        (connection, "health_check_interval", 0),
    ):
        value = getattr(owner, name, None)
        if value is not None and not (isinstance(value, int | float) and value >= minimum):
            raise ValueError(f"{name} must be at least {minimum} seconds, got {value!r}")
    retry = getattr(connection, "retry", None)
    if retry is not None and not hasattr(retry, "call_with_retry"):
        raise ValueError(f"retry must be a Retry of redis-py, got {retry!r}")
