"""A client that the project makes itself, instead of the one that its cache has."""

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import RedisError

from ..conf import conf
from ..redaction import without_secrets
from .cluster import known


def has_own(alias: str) -> bool:
    """Whether the locks of an alias live where ``REDISLOCK_CLIENT`` leads."""
    return alias == conf.cache and conf.client is not None


def own_client() -> Any:
    """Raises redis-py's `ConnectionError` where to make it is to connect, and that fails, and
    `ImproperlyConfigured` where it can't be made at all."""
    return _made("REDISLOCK_CLIENT", conf.client, of_asyncio=False)


def own_async_client() -> Any:
    if conf.async_client is None:
        raise ImproperlyConfigured(
            "REDISLOCK_ASYNC_CLIENT is not set. Async code needs it if REDISLOCK_CLIENT is set: "
            "use the dotted path of a callable that returns a redis.asyncio client."
        )
    return _made("REDISLOCK_ASYNC_CLIENT", conf.async_client, of_asyncio=True)


def _called(setting: str, make: Callable[[], Any]) -> Any:
    try:
        return known(make)
    except (RedisError, ImproperlyConfigured):
        raise
    except Exception as error:
        told = without_secrets(repr(error))
        raise ImproperlyConfigured(f"The callable in {setting} failed: {told}") from error


def _made(setting: str, make: Callable[[], Any] | None, *, of_asyncio: bool) -> Any:
    client = _called(setting, make) if make else None
    execute = getattr(client, "execute_command", None)
    if execute is None or iscoroutinefunction(execute) != of_asyncio:
        kind = "redis.asyncio client" if of_asyncio else "synchronous redis-py client"
        raise ImproperlyConfigured(
            f"The callable in {setting} must return a {kind}, got a {type(client).__name__}"
        )
    return client
