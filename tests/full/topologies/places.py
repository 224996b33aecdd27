"""Django's settings for each kind of deployment that can store locks.

A place is the name of a function here, and arguments that JSON can represent, so that other
processes get it too: see `environment` and `tests.full.topologies.settings`.
"""

import json
from typing import Any

import redis

VARIABLE = "TESTS_PLACE"
"""The environment variable with the place of a process's locks."""

PREFIX = "places"

Settings = dict[str, Any]


def core(url: str, **options: Any) -> Settings:
    """Django's own backend."""
    return _caches("django.core.cache.backends.redis.RedisCache", url, options)


def core_sentinels(url: str, sentinels: list[tuple[str, int]]) -> Settings:
    """Django's own backend, with a pool that asks Sentinels for the master named in the URL."""
    options = {
        "pool_class": "redis.sentinel.SentinelConnectionPool",
        "sentinel_manager": redis.Sentinel([tuple(each) for each in sentinels]),
        "service_name": redis.connection.parse_url(url)["host"],
    }
    return core(url, **options)


def django_redis(url: str | list[str], **options: Any) -> Settings:
    return _caches("django_redis.cache.RedisCache", url, options)


def django_redis_sentinels(url: str, sentinels: list[tuple[str, int]]) -> Settings:
    return django_redis(
        url,
        CLIENT_CLASS="django_redis.client.SentinelClient",
        CONNECTION_FACTORY="django_redis.pool.SentinelConnectionFactory",
        SENTINELS=[tuple(each) for each in sentinels],
    )


def django_valkey(url: str, **options: Any) -> Settings:
    return _caches("django_valkey.cache.ValkeyCache", url, options)


def cluster(startup: list[tuple[str, int]], **options: Any) -> Settings:
    """A client of a Cluster, which no cache backend supports."""
    memory = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    return {"CACHES": {"default": memory}} | cluster_client(startup, **options)


def cluster_client(startup: list[tuple[str, int]], **options: Any) -> Settings:
    return {
        "REDISLOCK_CLIENT": "tests.full.topologies.cluster_clients.make",
        "REDISLOCK_ASYNC_CLIENT": "tests.full.topologies.cluster_clients.make_async",
        "TESTS_CLUSTER": {"startup": startup, "options": options},
    }


def settings(place: str, arguments: dict[str, Any]) -> Settings:
    return globals()[place](**arguments)


def environment(place: str, arguments: dict[str, Any]) -> dict[str, str]:
    """Return the environment variables that give another process the same place."""
    return {
        "DJANGO_SETTINGS_MODULE": "tests.full.topologies.settings",
        VARIABLE: json.dumps([place, arguments]),
    }


def _caches(backend: str, url: str | list[str], options: dict[str, Any]) -> Settings:
    entry = {"BACKEND": backend, "LOCATION": url, "KEY_PREFIX": PREFIX, "OPTIONS": options}
    return {"CACHES": {"default": entry}}
