"""The settings, with their defaults. Each is read once, and again when `override_settings` says
that it has changed."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Generic, TypeVar

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from .secrecy import without_secrets
from .values import count, lease

T = TypeVar("T")


class Setting(Generic[T]):
    """``REDISLOCK_<NAME>``, or the default; of one of `kinds`, or `ImproperlyConfigured`."""

    def __init__(self, default: T, *kinds: type) -> None:
        self.default = default
        self.kinds = kinds

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self._attribute = f"REDISLOCK_{name.upper()}", name
        setting_changed.connect(self._forget)

    def __get__(self, instance: object, owner: type) -> T:
        # Python finds it there from now on, and asks no more here.
        found = vars(instance)[self._attribute] = self._read()
        return found

    def _forget(self, *, setting: str, **about: object) -> None:
        if setting == self.name:
            vars(conf).pop(self._attribute, None)

    def _read(self) -> T:
        value: T = getattr(settings, self.name, self.default)
        if not isinstance(value, self.kinds):
            wanted = " or ".join(kind.__name__ for kind in self.kinds)
            raise ImproperlyConfigured(
                f"{self.name} must be {wanted}, got {without_secrets(repr(value))}"
            )
        return value


class Lease(Setting[float]):
    """``REDISLOCK_<NAME>``, in seconds, or `ImproperlyConfigured`."""

    def _read(self) -> float:
        found = super()._read()
        try:
            return lease(self.name, found)
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(str(error)) from None


class Count(Setting[int]):
    """``REDISLOCK_<NAME>``, a number from 0 to 1,000,000, or `ImproperlyConfigured`."""

    def _read(self) -> int:
        found = super()._read()
        try:
            return count(self.name, found, least=0)
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(str(error)) from None


class Patterns(Setting[Sequence[str]]):
    """``REDISLOCK_<NAME>``, a list of texts, or `ImproperlyConfigured`."""

    def _read(self) -> Sequence[str]:
        patterns = super()._read()
        if not all(patterns) or set(map(type, patterns)) - {str}:
            raise ImproperlyConfigured(f"{self.name} must list patterns, got {patterns!r}")
        return patterns


class Factory(Setting[Callable[[], Any] | None]):
    """What the dotted path in ``REDISLOCK_<NAME>`` names, or `ImproperlyConfigured`; or None."""

    def _read(self) -> Callable[[], Any] | None:
        path: Any = super()._read()
        if path is None:
            return None
        try:
            found: Any = import_string(path)
        except ImportError as error:
            raise ImproperlyConfigured(
                f"{self.name} can't be imported: {without_secrets(error)}"
            ) from None
        if not callable(found):
            raise ImproperlyConfigured(f"{self.name} must name a callable, got {path!r}")
        made: Callable[[], Any] = found
        return made


class Conf:
    cache = Setting("default", str)
    """The alias of ``CACHES`` whose server keeps the locks."""

    prefix = Setting("redislock", str)
    """What every key begins with, behind the alias's own ``KEY_PREFIX``."""

    timeout = Lease(30.0, int, float, timedelta)
    """The lease in seconds where a lock names none."""

    history = Count(1000, int)
    """How many of the latest events each of the 16 buckets keeps of each sort; 0: none."""

    client = Factory(None, str, type(None))
    """The path of a callable that makes the client to use instead of the cache's."""

    async_client = Factory(None, str, type(None))
    """The same for asyncio."""

    redact = Patterns((), list, tuple)
    """Patterns of the metadata's keys whose values are not to be shown."""


conf = Conf()
