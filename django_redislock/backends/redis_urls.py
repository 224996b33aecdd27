"""The addresses of servers, as settings give them."""

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured
from redis.connection import parse_url
from redis.sentinel import SentinelConnectionPool


def refuse_malformed(addresses: Iterable[object], pool_class: Any = None) -> None:
    """Raise `ImproperlyConfigured` if one can't be read, or says something else than is meant: a
    password that is not percent-encoded would be in its host, its port, or the next address. The
    error quotes nothing of it."""
    asks_sentinels = isinstance(pool_class, type) and issubclass(
        pool_class, SentinelConnectionPool
    )
    addresses = [*addresses]
    if not addresses:
        raise ImproperlyConfigured("LOCATION has no address.")
    for address in addresses:
        if not (_is_fine(str(address)) and (asks_sentinels or _has_host(str(address)))):
            raise ImproperlyConfigured(
                "An address in LOCATION is invalid. It must begin with redis://, rediss:// or "
                "unix://, and all characters of the user name and the password except letters "
                "and digits must be percent-encoded."
            )


def _has_host(address: str) -> bool:
    """Whether who connects can look its host up; Sentinels know it by any name."""
    try:
        (urlsplit(address).hostname or "").encode("idna")
    except ValueError:
        return False
    return True


def _is_fine(address: str) -> bool:
    try:
        parts = urlsplit(address)
        parse_url(address)  # type: ignore[no-untyped-call]
    except ValueError:
        return False
    if parts.scheme == "unix":
        return not parts.netloc or parts.netloc.endswith("@")
    # A user's name and password end with an @, and stand before everything else.
    is_option = "=" in parts.query.partition("@")[0]
    return "@" not in parts.path + parts.fragment + ("" if is_option else parts.query)
