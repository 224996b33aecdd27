"""System checks. Those that send commands to Redis run with ``--deploy`` only.

Each check imports what it needs when it runs, so that an installed app does not import redis-py.
"""

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.core.cache import caches
from django.core.cache.backends.base import default_key_func
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured

from .conf import Conf, Setting, conf
from .redaction import without_secrets

Apps = Sequence[AppConfig] | None

SETTINGS_HINT = "Correct the setting, or remove it to use the default."


@register(Tags.caches)
def check_backend(app_configs: Apps, **kwargs: Any) -> list[CheckMessage]:
    """E001: The cache alias does not exist. E002: The cache alias cannot store locks."""
    known = ", ".join(map(repr, caches.settings))
    hint = f"Set REDISLOCK_CACHE to one of the cache aliases: {known}."
    try:
        alias = conf.cache
    except ImproperlyConfigured as error:
        return [_error("redislock.E001", error, hint)]
    if alias not in caches.settings:
        text = f"REDISLOCK_CACHE is {without_secrets(repr(alias))}, which is not in CACHES."
        return [_error("redislock.E001", text, f"{hint} Or add this alias to CACHES.")]
    if _setting_error("client"):
        return []  # check_settings reports it as E003.
    from .backends import supports_locks, unsupported_message

    try:
        if supports_locks(alias):
            return []
    except ImproperlyConfigured as error:
        hint = f"Correct BACKEND, LOCATION or OPTIONS in CACHES[{without_secrets(repr(alias))}]."
        return [_error("redislock.E002", error, hint)]
    hint = (
        "Set REDISLOCK_CACHE to a cache alias with one of these backends. Your other caches are "
        "not affected. Or set REDISLOCK_CLIENT to a callable that returns a redis-py client."
    )
    return [_error("redislock.E002", unsupported_message(alias), hint)]


@register(Tags.caches)
def check_settings(app_configs: Apps, **kwargs: Any) -> list[CheckMessage]:
    """E003: A setting other than ``REDISLOCK_CACHE`` has an invalid value."""
    names = [name for name, each in vars(Conf).items() if isinstance(each, Setting)]
    errors = [_setting_error(name) for name in names if name != "cache"]
    return [_error("redislock.E003", error, SETTINGS_HINT) for error in errors if error]


def _setting_error(name: str) -> ImproperlyConfigured | None:
    try:
        getattr(conf, name)
    except ImproperlyConfigured as error:
        return error
    return None


def _is_misconfigured(app_configs: Apps) -> bool:
    """Return whether the first two checks report an error, so that the others cannot run."""
    return bool(check_backend(app_configs) or check_settings(app_configs))


@register(Tags.caches)
def check_key_function(app_configs: Apps, **kwargs: Any) -> list[CheckMessage]:
    """W004: The cache alias has a ``KEY_FUNCTION``, which locks do not call."""
    if _is_misconfigured(app_configs) or caches[conf.cache].key_func is default_key_func:
        return []
    text = (
        f"The cache alias {conf.cache!r} has a KEY_FUNCTION, which locks do not call: sites "
        "or tenants that it separates share their locks."
    )
    hint = "Put the tenant into the name of each lock, and silence this check."
    return [_warning("redislock.W004", text, hint)]


@register(Tags.caches, deploy=True)
def check_eviction(app_configs: Apps, **kwargs: Any) -> list[CheckMessage]:
    """W001: The server can evict locks. W002: The eviction policy is unknown."""
    from redis.exceptions import RedisError

    from .backends import servers
    from .engine.runners import run
    from .health import eviction_policy

    try:
        policies = [
            run(each.parent.client, eviction_policy(each.routing_key))
            for each in servers[conf.cache].node_servers()
        ]
    except ImproperlyConfigured as error:
        if _is_misconfigured(app_configs):
            return []
        return [_error("redislock.E003", error, SETTINGS_HINT)]
    except RedisError as error:
        text = (
            f"Could not read the eviction policy of the Redis server of the cache alias "
            f"{conf.cache!r}: {type(error).__name__}."
        )
        hint = "Check that the server is reachable and that the user may run INFO."
        return [_warning("redislock.W002", text, hint)]
    policy = next((each for each in policies if each != "noeviction"), None)
    if policy is None:
        return []
    text = (
        f"The Redis server of the cache alias {conf.cache!r} uses maxmemory-policy "
        f"{policy!r}: it can delete held locks when its memory is full."
    )
    hint = "Use a separate server with maxmemory-policy noeviction for locks."
    return [_warning("redislock.W001", text, hint)]


@register(Tags.caches, deploy=True)
def check_own_database(app_configs: Apps, **kwargs: Any) -> list[CheckMessage]:
    """W003: Locks share a Redis database with a cache."""
    if _is_misconfigured(app_configs):
        return []
    if conf.cache == "default" and conf.client is None:
        shared: str | None = "default"
    else:
        own = _database(conf.cache)
        others = (alias for alias in caches.settings if alias != conf.cache)
        shared = next((alias for alias in others if own and _database(alias) == own), None)
    if shared is None:
        return []
    text = (
        f"Locks share a Redis database with the cache {shared!r}: cache.clear() sends "
        "FLUSHDB, which deletes every lock."
    )
    hint = (
        "Add a cache alias with its own database number or server, and set "
        "REDISLOCK_CACHE to it. Silence this check if you never call cache.clear()."
    )
    return [_warning("redislock.W003", text, hint)]


def _database(alias: str) -> tuple[str, int] | None:
    from .backends import servers

    try:
        return servers[alias].database
    except ImproperlyConfigured:
        return None


def _error(check_id: str, text: object, hint: str) -> Error:
    return Error(f"{str(text).rstrip('.')}.", hint=hint, id=check_id)


def _warning(check_id: str, text: str, hint: str) -> Warning:
    return Warning(text, hint=hint, id=check_id)
