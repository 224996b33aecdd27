"""The settings and their defaults.

Each setting is read once. It is read again after `override_settings` has changed it.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Generic, TypeVar

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from .redaction import without_secrets
from .validators import count, lease

T = TypeVar("T")


class Setting(Generic[T]):
    """``REDISLOCK_<NAME>``, or the default. Raises `ImproperlyConfigured` for another type."""

    expected = "a string"
    """A description of a valid value, for the error."""

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
            raise ImproperlyConfigured(
                f"{self.name} must be {self.expected}, got {without_secrets(repr(value))}"
            )
        return value


class Lease(Setting[float]):
    """``REDISLOCK_<NAME>``, in seconds."""

    expected = "a number of seconds or a timedelta"

    def _read(self) -> float:
        found = super()._read()
        try:
            return lease(self.name, found)
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(str(error)) from None


class Count(Setting[int]):
    """``REDISLOCK_<NAME>``, a whole number from 0 to 1,000,000."""

    expected = "an int"

    def _read(self) -> int:
        found = super()._read()
        try:
            return count(self.name, found, least=0)
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(str(error)) from None


class Patterns(Setting[Sequence[str]]):
    """``REDISLOCK_<NAME>``, a list of strings that are not empty."""

    expected = "a list of patterns"

    def _read(self) -> Sequence[str]:
        patterns = super()._read()
        if not all(patterns) or set(map(type, patterns)) - {str}:
            raise ImproperlyConfigured(f"{self.name} must be {self.expected}, got {patterns!r}")
        return patterns


class Factory(Setting[Callable[[], Any] | None]):
    """The callable that the dotted path in ``REDISLOCK_<NAME>`` names, or None."""

    expected = "the dotted path of a callable"

    def _read(self) -> Callable[[], Any] | None:
        path: Any = super()._read()
        if path is None:
            return None
        try:
            found: Any = import_string(path)
        except ImportError as error:
            raise ImproperlyConfigured(
                f"{self.name} cannot be imported: {without_secrets(error)}"
            ) from None
        if not callable(found):
            raise ImproperlyConfigured(f"{self.name} must be {self.expected}, got {path!r}")
        made: Callable[[], Any] = found
        return made


class CacheAlias(Setting[str]):
    expected = "the name of a cache alias (a string)"


class Conf:
    cache = CacheAlias("default", str)
    """The cache alias whose server stores the locks."""

    prefix = Setting("redislock", str)
    """The prefix of every key. It follows the ``KEY_PREFIX`` of the cache alias."""

    timeout = Lease(30.0, int, float, timedelta)
    """The default lease, in seconds."""

    history = Count(1000, int)
    """How many events of each type each of the 16 buckets keeps. 0 keeps no history."""

    client = Factory(None, str, type(None))
    """The dotted path of a callable that returns the client to use instead of the cache's."""

    async_client = Factory(None, str, type(None))
    """The dotted path of a callable that returns a ``redis.asyncio`` client."""

    redact = Patterns((), list, tuple)
    """Patterns of metadata keys whose values are hidden."""


conf = Conf()
