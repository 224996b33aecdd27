"""The settings and their defaults.

Each setting is read once. It is read again after `override_settings` has changed it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from .redaction import without_secrets
from .validators import count, lease

T = TypeVar("T")


class Setting(Generic[T]):
    """A descriptor for ``REDISLOCK_<NAME>``. It raises `ImproperlyConfigured` if it is invalid.

    Args:
        default: The value if the setting is not set.
        validate: A function that takes the name and the value of the setting, and returns the
            valid value. It raises `TypeError` or `ValueError`.
    """

    def __init__(self, default: Any, validate: Callable[[str, Any], T]) -> None:
        self.default = default
        self.validate = validate

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self._attribute = f"REDISLOCK_{name.upper()}", name
        setting_changed.connect(self._forget)

    def __get__(self, instance: object, owner: type) -> T:
        try:
            value = self.validate(self.name, getattr(settings, self.name, self.default))
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(without_secrets(error)) from None
        vars(instance)[self._attribute] = value  # Python then finds it before this descriptor.
        return value

    def _forget(self, *, setting: str, **kwargs: object) -> None:
        if setting == self.name:
            vars(conf).pop(self._attribute, None)


def _string(name: str, value: object, expected: str = "a string") -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be {expected}, got {value!r}")
    return value


def _patterns(name: str, value: Any) -> Sequence[str]:
    is_list = isinstance(value, list | tuple)
    if not (is_list and all(value) and all(type(pattern) is str for pattern in value)):
        raise TypeError(f"{name} must be a list of patterns, got {value!r}")
    found: Sequence[str] = value
    return found


def _clients(name: str, value: object) -> Mapping[str | None, Callable[[], Any]]:
    """Return callables by cache alias. A single one has the key None."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        return {None: _imported(name, value)}
    return {
        _string(f"Each key of {name}", alias, "the name of a cache alias"): _imported(
            f"{name}[{alias!r}]", path
        )
        for alias, path in value.items()
    }


def _imported(name: str, value: object) -> Callable[[], Any]:
    expected = "the dotted path of a callable"
    try:
        found = import_string(_string(name, value, expected))
    except ImportError as error:
        raise ValueError(f"{name} cannot be imported: {error}") from None
    if not callable(found):
        raise TypeError(f"{name} must be {expected}, got {value!r}")
    function: Callable[[], Any] = found
    return function


class Conf:
    cache = Setting("default", partial(_string, expected="the name of a cache alias (a string)"))
    """The cache alias whose server stores the locks."""

    prefix = Setting("redislock", _string)
    """The prefix of every key. It follows the ``KEY_PREFIX`` of the cache alias."""

    timeout = Setting(30.0, lease)
    """The default lease, in seconds."""

    history = Setting(10_000, partial(count, least=0))
    """How many events of each type are kept. 0 keeps no history."""

    client = Setting(None, _clients)
    """The dotted path of a callable that returns the client to use instead of the cache's, or a
    dictionary with one for each of several cache aliases."""

    async_client = Setting(None, _clients)
    """The same for ``redis.asyncio`` clients."""

    max_connections = Setting(50, partial(count, least=1))
    """How many connections the threads of a process use for locks at most."""

    redact = Setting((), _patterns)
    """Patterns of metadata keys whose values are hidden."""


conf = Conf()
