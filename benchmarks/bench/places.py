"""Django as a site has it, with a cache alias for each server."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import redis

from .contenders import client_of

PREFIX = "testproject"  # as its settings have it, which Celery's workers read

KEYS = f"{PREFIX}:redislock"  # what all keys of ours begin with


def set_up(url: str) -> None:
    """As the settings are read once, `url` is for the whole process and for all that it starts."""
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
        }
        for alias, url in urls.items()
    }
    with override_settings(CACHES=caches):
        yield


def total(client: redis.Redis, what: str, *names: str) -> int:
    """The calls of these commands since ``CONFIG RESETSTAT``, or with ``usec`` the microseconds.
    What a script calls counts too, and its time also counts as time of the script."""
    stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {what: 0})[what] for name in names)


def fill_up(alias: str | None, url: str, first: int, end: int) -> None:
    """Make the locks from number `first` to `end` without acquiring each; lock 0 is the model."""
    from django_redislock import locks
    from tests.filling import fill

    if first == 0:
        locks.using(alias).lock("model", timeout=3600, auto_renewal=False).acquire()
    names = [f"lock:{number}" for number in range(max(1, first), end)]
    fill(client_of(url), KEYS, "model", names)
