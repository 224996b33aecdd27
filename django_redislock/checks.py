"""System checks. Those that send commands to Redis run with ``--deploy`` only.

They import what needs redis-py when they run, because an installed app does not import it.
"""

import ssl
from collections.abc import Iterator
from typing import Any

from django.core.cache import caches
from django.core.cache.backends.base import default_key_func
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured

from .conf import Conf, Setting, conf
from .redaction import without_secrets

BACKEND_HINT = (
    "Set REDISLOCK_CACHE to a cache alias with one of these backends. Your other caches are not "
    "affected. Or set REDISLOCK_CLIENT to a callable that returns a redis-py client."
)
SETTINGS_HINT = "Correct the setting, or remove it to use the default."


@register(Tags.caches)
def check_settings(app_configs: object, **kwargs: object) -> list[CheckMessage]:
    """E001, E002, E003: The settings are invalid. W004: The alias has a ``KEY_FUNCTION``."""
    errors = list(_errors())
    if errors or caches[conf.cache].key_func is default_key_func:
        return errors
    text = (
        f"The cache alias {conf.cache!r} has a KEY_FUNCTION, which locks do not call: sites "
        "or tenants that it separates share their locks."
    )
    hint = "Put the tenant into the name of each lock, and silence this check."
    return [Warning(text, hint=hint, id="redislock.W004")]


@register(Tags.caches)
def check_greenlets(app_configs: object, **kwargs: object) -> list[CheckMessage]:
    """E005: gevent or eventlet has patched the process in part, or too late."""
    from .engine.patches import REMEDY, patches_error

    error = patches_error()
    if error is None:
        return []
    return [_error("redislock.E005", error.removesuffix(f" {REMEDY}"), REMEDY)]


@register(Tags.caches, deploy=True)
def check_server(app_configs: object, **kwargs: object) -> list[CheckMessage]:
    """W001, W002: The server can evict locks, or does not say. W003: It also stores a cache. W005:
    The client accepts the certificate of any host."""
    return [] if any(_errors()) else [*_eviction(), *_shared_database(), *_host_of_certificate()]


def _errors() -> Iterator[CheckMessage]:
    from .backends import supports_locks, unsupported_message

    mistakes: dict[str, ImproperlyConfigured] = {}
    for name, setting in vars(Conf).items():
        try:
            if isinstance(setting, Setting):
                getattr(conf, name)
        except ImproperlyConfigured as error:
            mistakes[name] = error
    known = ", ".join(map(repr, caches.settings))
    hint = f"Set REDISLOCK_CACHE to one of the cache aliases: {known}."
    if mistake := mistakes.pop("cache", None):
        yield _error("redislock.E001", mistake, hint)
    elif conf.cache not in caches.settings:
        text = f"REDISLOCK_CACHE is {without_secrets(repr(conf.cache))}, which is not in CACHES"
        yield _error("redislock.E001", text, f"{hint} Or add this alias to CACHES.")
    elif "client" not in mistakes:
        try:
            if not supports_locks(conf.cache):
                yield _error("redislock.E002", unsupported_message(conf.cache), BACKEND_HINT)
        except ImproperlyConfigured as error:
            alias = without_secrets(repr(conf.cache))
            hint = f"Correct BACKEND, LOCATION or OPTIONS in CACHES[{alias}]."
            yield _error("redislock.E002", error, hint)
    for mistake in mistakes.values():
        yield _error("redislock.E003", mistake, SETTINGS_HINT)
    for name in {"client", "async_client"} - mistakes.keys():
        for alias in getattr(conf, name).keys() - {None, *caches.settings}:
            text = f"REDISLOCK_{name.upper()} has the key {without_secrets(repr(alias))}, which "
            yield _error("redislock.E003", f"{text}is not in CACHES", SETTINGS_HINT)


def _eviction() -> Iterator[CheckMessage]:
    from redis.exceptions import RedisError

    from .backends import servers
    from .engine.runners import run
    from .health import INFO_CHECKS, REMEDIES, read_info

    try:
        info = run(servers[conf.cache].client, read_info())
    except ImproperlyConfigured as error:  # The callable of REDISLOCK_CLIENT returns no client.
        yield _error("redislock.E003", error, SETTINGS_HINT)
        return
    except RedisError as error:
        text = f"Locks on {conf.cache!r}: The eviction policy is unknown ({type(error).__name__})."
        hint = "Check that the server is reachable, and that its user may run INFO."
        yield Warning(text, hint=hint, id="redislock.W002")
        return
    status, summary, _ = INFO_CHECKS["eviction"](info)
    if status != "ok":
        text = f"Locks on {conf.cache!r}: {summary}"
        yield Warning(text, hint=REMEDIES["eviction"], id="redislock.W001")


def _shared_database() -> Iterator[CheckMessage]:
    from .backends import uses_custom_client

    own = _database(conf.cache)
    others = (alias for alias in caches.settings if alias != conf.cache)
    shared = next((alias for alias in others if own and _database(alias) == own), None)
    if conf.cache == "default" and not uses_custom_client("default"):
        shared = "default"
    if shared:
        text = (
            f"Locks share a Redis database with the cache {shared!r}: cache.clear() sends "
            "FLUSHDB, which deletes every lock."
        )
        hint = (
            "Add a cache alias with its own database number or server, and set "
            "REDISLOCK_CACHE to it. Silence this check if you never call cache.clear()."
        )
        yield Warning(text, hint=hint, id="redislock.W003")


def _host_of_certificate() -> Iterator[CheckMessage]:
    from redis.exceptions import RedisError

    from .backends import servers

    try:
        pool = servers[conf.cache].pool
    except (ImproperlyConfigured, RedisError):  # W002 and E003 report it.
        return
    sentinels = getattr(pool, "sentinel_manager", None)
    pools = [pool, *(each.connection_pool for each in (sentinels.sentinels if sentinels else ()))]
    if any(map(_accepts_any_host, pools)):
        yield Warning(
            f"Locks on {conf.cache!r}: The client accepts the certificate of any host, so each "
            "server with a certificate of the same authority can read the password.",
            hint="Set the option ssl_check_hostname=True of redis-py.",
            id="redislock.W005",
        )


def _accepts_any_host(pool: Any) -> bool:
    from redis import SSLConnection

    from .backends.pools import is_made_by_redis_py

    if not (is_made_by_redis_py(pool) and issubclass(pool.connection_class, SSLConnection)):
        return False
    connection = pool.connection_class(**pool.connection_kwargs)  # not connected
    return bool(connection.cert_reqs != ssl.CERT_NONE and not connection.check_hostname)


def _database(alias: str) -> tuple[str, int] | None:
    from .backends import servers

    try:
        return servers[alias].database
    except ImproperlyConfigured:
        return None


def _error(check_id: str, text: object, hint: str) -> Error:
    return Error(f"{str(text).rstrip('.')}.", hint=hint, id=check_id)
