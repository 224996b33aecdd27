"""System checks. Those that send commands to Redis run with ``--deploy`` only.

Each check imports what it needs when it runs, so that an installed app does not import redis-py.
"""

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.core.cache import InvalidCacheBackendError, caches
from django.core.cache.backends.base import default_key_func
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured

from .conf import Conf, Setting, conf
from .redaction import without_secrets

Apps = Sequence[AppConfig] | None

SETTINGS = tuple(
    name for name, each in vars(Conf).items() if isinstance(each, Setting) and name != "cache"
)


@register(Tags.caches)
def check_backend(app_configs: Apps, **kwargs: Any) -> list[CheckMessage]:
    """E001: The cache alias does not exist. E002: The cache alias cannot store locks."""
    known = ", ".join(map(repr, caches.settings))
    try:
        alias = conf.cache
    except ImproperlyConfigured as error:
        hint = f"Set REDISLOCK_CACHE to one of the cache aliases: {known}."
        return [Error(_sentence(error), hint=hint, id="redislock.E001")]
    if alias not in caches.settings:
        return [
            Error(
                f"REDISLOCK_CACHE is {without_secrets(repr(alias))}, which is not in CACHES.",
                hint=f"Add the alias to CACHES, or set REDISLOCK_CACHE to one of: {known}.",
                id="redislock.E001",
            )
        ]
    return _check_alias(alias)


def _check_alias(alias: str) -> list[CheckMessage]:
    if _refusal_of("client"):
        return []  # check_settings reports it as E003.
    from .backends import supports_locks, unsupported_message

    try:
        if supports_locks(alias):
            return []
    except ImproperlyConfigured as error:
        return [Error(_sentence(error), hint=_hint(alias, error), id="redislock.E002")]
    hint = (
        "Set REDISLOCK_CACHE to a cache alias with one of these backends. Your other caches are "
        "not affected. Or set REDISLOCK_CLIENT to a callable that returns a redis-py client."
    )
    return [Error(unsupported_message(alias), hint=hint, id="redislock.E002")]


def _hint(alias: str, error: ImproperlyConfigured) -> str:
    where = f"CACHES[{without_secrets(repr(alias))}]"
    if isinstance(error.__context__, InvalidCacheBackendError):
        return f"Correct BACKEND in {where}, or install the package of the backend."
    if "LOCATION" in str(error) and "OPTIONS" not in str(error):
        return f"Correct LOCATION in {where}."
    return f"Correct OPTIONS in {where}, or the query string of an address in LOCATION."


SETTING_HINTS = {
    "prefix": 'Example: REDISLOCK_PREFIX = "redislock".',
    "timeout": "Example: REDISLOCK_TIMEOUT = 30 (seconds).",
    "history": "Example: REDISLOCK_HISTORY = 1000 (events). 0 keeps no history.",
    "redact": 'Example: REDISLOCK_REDACT = ["*password*"].',
    "client": (
        'Example: REDISLOCK_CLIENT = "project.redis.client", the dotted path of a callable that '
        "returns a synchronous redis-py client."
    ),
    "async_client": (
        'Example: REDISLOCK_ASYNC_CLIENT = "project.redis.async_client", the dotted path of a '
        "callable that returns a redis.asyncio client."
    ),
}


@register(Tags.caches)
def check_settings(app_configs: Apps, **kwargs: Any) -> list[CheckMessage]:
    """E003: A setting other than ``REDISLOCK_CACHE`` has an invalid value."""
    return [
        Error(
            _sentence(refusal),
            hint=f"{SETTING_HINTS[setting]} Remove the setting to use the default.",
            id="redislock.E003",
        )
        for setting in SETTINGS
        if (refusal := _refusal_of(setting))
    ]


def _sentence(error: object) -> str:
    return f"{str(error).rstrip('.')}."


def _refusal_of(setting: str) -> str:
    """Return why the value of a setting is refused, or an empty string."""
    try:
        getattr(conf, setting)
    except ImproperlyConfigured as error:
        return str(error)
    return ""


@register(Tags.caches)
def check_key_function(app_configs: Apps, **kwargs: Any) -> list[CheckMessage]:
    """W004: The cache alias has a ``KEY_FUNCTION``, which locks do not call."""
    if check_backend(app_configs) or check_settings(app_configs):
        return []
    if caches[conf.cache].key_func is default_key_func:
        return []
    return [
        Warning(
            f"The cache alias {conf.cache!r} has a KEY_FUNCTION, which locks do not call: sites "
            "or tenants that it separates share their locks.",
            hint="Put the tenant into the name of each lock, and silence this check.",
            id="redislock.W004",
        )
    ]


@register(Tags.caches, deploy=True)
def check_eviction(app_configs: Apps, **kwargs: Any) -> list[CheckMessage]:
    """W001: The server can evict locks. W002: The eviction policy is unknown."""
    from redis.exceptions import RedisError

    from .backends import server
    from .engine.runners import run
    from .health import eviction_policy

    try:
        policies = [
            run(each.whole.client, eviction_policy(each.key))
            for each in server(conf.cache).members()
        ]
    except ImproperlyConfigured as error:
        if check_backend(app_configs) or check_settings(app_configs):
            return []  # These checks report the error.
        hint = SETTING_HINTS["client"]
        return [Error(_sentence(error), hint=hint, id="redislock.E003")]
    except RedisError as error:
        return [
            Warning(
                f"Could not read the eviction policy of the Redis server of the cache alias "
                f"{conf.cache!r}: {type(error).__name__}.",
                hint="Check that the server is reachable and that the user may run INFO.",
                id="redislock.W002",
            )
        ]
    policy = next((each for each in policies if each != "noeviction"), None)
    if policy is None:
        return []
    return [
        Warning(
            f"The Redis server of the cache alias {conf.cache!r} uses maxmemory-policy "
            f"{policy!r}: it can delete held locks when its memory is full.",
            hint="Use a separate server with maxmemory-policy noeviction for locks.",
            id="redislock.W001",
        )
    ]


@register(Tags.caches, deploy=True)
def check_own_database(app_configs: Apps, **kwargs: Any) -> list[CheckMessage]:
    """W003: Locks share a Redis database with a cache."""
    if check_backend(app_configs) or check_settings(app_configs):
        return []
    of_the_site = conf.cache == "default" and conf.client is None
    shared = "default" if of_the_site else _alias_in_the_same_database()
    if shared is None:
        return []
    return [
        Warning(
            f"Locks share a Redis database with the cache {shared!r}: cache.clear() sends "
            "FLUSHDB, which deletes every lock.",
            hint="Add a cache alias with its own database number or server, and set "
            "REDISLOCK_CACHE to it. Silence this check if you never call cache.clear().",
            id="redislock.W003",
        )
    ]


def _alias_in_the_same_database() -> str | None:
    own = _database(conf.cache)
    others = (alias for alias in caches.settings if alias != conf.cache)
    return next((alias for alias in others if own and _database(alias) == own), None)


def _database(alias: str) -> tuple[str, int] | None:
    from .backends import server

    try:
        return server(alias).database
    except ImproperlyConfigured:
        return None
