"""Django as a site has it, with a cache alias for each server."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import redis

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


class Commands:
    """What the server was asked in the block, and for how long it worked at it: by command, calls
    and microseconds. What a script calls counts as well, and in the script's time once more."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def __enter__(self) -> "Commands":
        self._client.config_resetstat()
        return self

    def __exit__(self, *error: object) -> None:
        stats = self._client.info("commandstats")
        named = {name.removeprefix("cmdstat_"): told for name, told in stats.items()}
        self.calls: dict[str, int] = {name: told["calls"] for name, told in named.items()}
        self.microseconds: dict[str, int] = {name: told["usec"] for name, told in named.items()}

    def sent(self, *names: str) -> int:
        return sum(self.calls.get(name, 0) for name in names)

    def took(self, *names: str) -> int:
        return sum(self.microseconds.get(name, 0) for name in names)
