"""System checks. What asks the server, or judges a deployment, runs with ``--deploy`` only.

Each imports what it needs when it runs: to have the app installed costs no import of redis-py.
"""

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.core.cache import InvalidCacheBackendError, caches
from django.core.cache.backends.base import default_key_func
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured

from .conf import Conf, Setting, conf
from .secrecy import without_secrets

Apps = Sequence[AppConfig] | None

SETTINGS = tuple(
    name for name, each in vars(Conf).items() if isinstance(each, Setting) and name != "cache"
)


@register(Tags.caches)
def check_backend(app_configs: Apps, **kwargs: Any) -> list[CheckMessage]:
    """E001: there is no such alias. E002: its backend can't keep locks."""
    try:
        alias = conf.cache
    except ImproperlyConfigured as error:
        return [Error(str(error), id="redislock.E001")]
    if alias not in caches.settings:
        return [
            Error(
                f"REDISLOCK_CACHE names the cache alias {without_secrets(repr(alias))}, "
                "which CACHES does not have.",
                hint="Add the alias to CACHES, or name another one in REDISLOCK_CACHE.",
                id="redislock.E001",
            )
        ]
    return _check_alias(alias)


def _check_alias(alias: str) -> list[CheckMessage]:
    if _refusal_of("client"):
        return []  # check_settings reports it as E003.
    from .connection import fits, unfit

    try:
        if fits(alias):
            return []
    except ImproperlyConfigured as error:
        return [Error(str(error), hint=_correction(error), id="redislock.E002")]
    hint = (
        "Name an alias on Redis in REDISLOCK_CACHE. The site's other caches can stay as they are."
    )
    return [Error(unfit(alias), hint=hint, id="redislock.E002")]


def _correction(error: ImproperlyConfigured) -> str:
    if isinstance(error.__context__, InvalidCacheBackendError):
        return "Correct the BACKEND of the alias in CACHES, or install the backend's package."
    return "Correct the LOCATION or the OPTIONS of the alias in CACHES."


@register(Tags.caches)
def check_settings(app_configs: Apps, **kwargs: Any) -> list[CheckMessage]:
    """E003: a setting other than ``REDISLOCK_CACHE`` has a value that it can't have."""
    return [
        Error(refusal, hint="Correct it, or leave it out.", id="redislock.E003")
        for refusal in map(_refusal_of, SETTINGS)
        if refusal
    ]


def _refusal_of(setting: str) -> str:
    """Return why the value of a setting is refused, or an empty string."""
    try:
        getattr(conf, setting)
    except ImproperlyConfigured as error:
        return str(error)
    return ""


@register(Tags.caches)
def check_key_function(app_configs: Apps, **kwargs: Any) -> list[CheckMessage]:
    """W004: The cache alias has a `KEY_FUNCTION`, which locks do not call."""
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
    """W001: the server may drop locks to make room. W002: it could not be asked."""
    from redis.exceptions import RedisError

    from .connection import server
    from .engine.drivers import run
    from .health import eviction_policy

    try:
        policies = [
            run(each.whole.client, eviction_policy(each.key))
            for each in server(conf.cache).members()
        ]
    except ImproperlyConfigured as error:
        if check_backend(app_configs) or check_settings(app_configs):
            return []  # told already
        return [Error(str(error), hint="Correct it, or leave it out.", id="redislock.E003")]
    except RedisError as error:
        return [
            Warning(
                f"The server of the cache alias {conf.cache!r} could not be asked for its "
                f"eviction policy: {type(error).__name__}.",
                hint="Locks need that server; see that it can be reached, and may be sent INFO.",
                id="redislock.W002",
            )
        ]
    policy = next((each for each in policies if each != "noeviction"), None)
    if policy is None:
        return []
    return [
        Warning(
            f"The server of the cache alias {conf.cache!r} evicts by {policy!r}: "
            "when its memory is full it may drop a lock that is held.",
            hint="Give locks a server of their own with maxmemory-policy noeviction.",
            id="redislock.W001",
        )
    ]


@register(Tags.caches, deploy=True)
def check_own_database(app_configs: Apps, **kwargs: Any) -> list[CheckMessage]:
    """W003: an ordinary cache of the site lives in the same database."""
    if check_backend(app_configs) or check_settings(app_configs):
        return []
    of_the_site = conf.cache == "default" and conf.client is None
    shared = "default" if of_the_site else _alias_in_the_same_database()
    if shared is None:
        return []
    return [
        Warning(
            f"Locks are kept where the site caches as {shared!r}: cache.clear() sends FLUSHDB, "
            "and every lock is gone.",
            hint="Give an alias of CACHES a database number (or a server) of its own and name it "
            "in REDISLOCK_CACHE. If nothing ever calls cache.clear(), silence this check.",
            id="redislock.W003",
        )
    ]


def _alias_in_the_same_database() -> str | None:
    own = _database(conf.cache)
    others = (alias for alias in caches.settings if alias != conf.cache)
    return next((alias for alias in others if own and _database(alias) == own), None)


def _database(alias: str) -> tuple[str, int] | None:
    from .connection import server

    try:
        return server(alias).database
    except ImproperlyConfigured:
        return None
