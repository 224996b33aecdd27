"""Django set up as on a site, with a cache alias for each server."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import redis

from .contenders import MAX_CONNECTIONS, client_of

PREFIX = "testproject"  # as in the settings, which Celery's workers read

KEYS = f"{PREFIX}:redislock"  # prefix of all keys of this package


def set_up(url: str) -> None:
    """Use `url` in this process and in all processes that it starts. Django reads it once."""
    import django

    os.environ["REDIS_URL"] = url
    os.environ["DJANGO_SETTINGS_MODULE"] = "testproject.settings"
    django.setup()


@contextmanager
def aliases(**urls: str) -> Iterator[None]:
    from django.test import override_settings

    caches = {
        alias: {
            "BACKEND": "django.core.cache.backends.redis.RedisCache",
            "LOCATION": url,
            "KEY_PREFIX": PREFIX,
            "OPTIONS": {"max_connections": MAX_CONNECTIONS},
        }
        for alias, url in urls.items()
    }
    with override_settings(CACHES=caches):
        yield


def total(client: redis.Redis, what: str, *names: str) -> int:
    """Return the calls of these commands since ``CONFIG RESETSTAT``, or with ``usec`` the time in
    microseconds. Commands in scripts count too, and their time is also part of the script's."""
    stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {what: 0})[what] for name in names)


def cpu_seconds(client: redis.Redis) -> float:
    """Return the processor time that the server has used."""
    cpu = client.info("cpu")
    return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])


def empty(url: str) -> None:
    """Delete all keys of the server."""
    with redis.Redis.from_url(url) as client:
        client.flushall()


def fill_up(alias: str | None, url: str, first: int, end: int) -> None:
    """Make the locks with the numbers `first` to `end` as copies of lock 0, which is acquired."""
    from django_redislock import locks
    from tests.filling import fill

    if first == 0:
        locks.using(alias).lock("model", timeout=3600, auto_renewal=False).acquire()
    names = [f"lock:{number}" for number in range(max(1, first), end)]
    fill(client_of(url), KEYS, "model", names)
