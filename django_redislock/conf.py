"""The settings, with their defaults. Read live, so `override_settings` works."""

from typing import Generic, TypeVar

from django.conf import settings

T = TypeVar("T")


class Setting(Generic[T]):
    """``REDISLOCK_<NAME>``, or the default."""

    def __init__(self, default: T) -> None:
        self.default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"REDISLOCK_{name.upper()}"

    def __get__(self, instance: object, owner: type) -> T:
        value: T = getattr(settings, self.name, self.default)
        return value


class Conf:
    cache = Setting("default")
    """The alias of ``CACHES`` whose server keeps the locks."""

    prefix = Setting("redislock")
    """What every key begins with, behind the alias's own ``KEY_PREFIX``."""

    timeout = Setting(30.0)
    """The lease in seconds where a lock names none."""


conf = Conf()
