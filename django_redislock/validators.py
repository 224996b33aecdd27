"""Validators for arguments.

Each takes the argument's name and its value, returns the valid value, and raises `TypeError` or
`ValueError` with a message that names both.
"""

import inspect
import json
import re
import reprlib
import sys
import warnings
from collections.abc import Callable, Container, Iterable, Mapping
from datetime import timedelta
from typing import Any, Literal, TypeAlias

from django.core.serializers.json import DjangoJSONEncoder
from django.db import DEFAULT_DB_ALIAS, connections

from .redaction import without_secrets

Seconds: TypeAlias = float | timedelta
"""Seconds as int, float or `timedelta`."""

MIN_LEASE_SECONDS = 0.01
MAX_LEASE_SECONDS = 10 * 365 * 24 * 3600.0
MAX_METADATA_CHARACTERS = 4096
MAX_METADATA_LEVELS = 50
MAX_COUNT = 1_000_000
MAX_BY_CHARACTERS = 150
MAX_REASON_CHARACTERS = 500

_TOKEN = re.compile("[!-9;-~]{1,128}")


class _ShortRepr(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80

    def repr_str(self, value: str, level: int) -> str:
        # First, because the middle of an address can be left out, and then looks like none.
        return super().repr_str(without_secrets(value), level)

    def repr_int(self, value: int, level: int) -> str:
        try:
            return super().repr_int(value, level)
        except ValueError:  # Python refuses to convert a very large int.
            return f"<int of {value.bit_length()} bits>"

    def repr_instance(self, value: object, level: int) -> str:
        try:
            text = without_secrets(repr(value))
        except Exception:  # of a faulty __repr__()
            return super().repr_instance(value, level)
        if len(text) <= self.maxother:
            return text
        half = self.maxother // 2
        return f"{text[: half - 3]}...{text[-half:]}"


_short = _ShortRepr()


def short_repr(value: object) -> str:
    """Return a short repr of an untrusted value without credentials, for an error message."""
    return _short.repr(value)


def seconds(argument: str, value: object) -> float:
    """Return a finite number of seconds."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            f"{argument} must be a number of seconds or a timedelta, got {short_repr(value)}"
        )
    if not abs(value) <= sys.float_info.max:  # an int can be too large for a float
        raise ValueError(f"{argument} must be finite, got {short_repr(value)}")
    return float(value)


def lease(argument: str, value: object) -> float:
    """Return the seconds of a lease, from 10 ms to 10 years."""
    number = seconds(argument, value)
    if not MIN_LEASE_SECONDS <= number <= MAX_LEASE_SECONDS:
        raise ValueError(f"{argument} must be from 10 ms to 10 years, got {short_repr(value)}")
    return number


def extension(argument: str, value: object, left: float) -> float:
    """Return the seconds by which a lease with `left` seconds is extended, to 10 years at most."""
    number = lease(argument, value)
    if left + number > MAX_LEASE_SECONDS:
        raise ValueError(
            f"{argument} must not extend the lease beyond 10 years, got {short_repr(value)}"
        )
    return number


def wait(argument: str, value: object) -> float | None:
    """Return the seconds to wait, or None for an unlimited wait."""
    number = None if value is None else seconds(argument, value)
    if number is not None and number < 0:
        raise ValueError(f"{argument} must not be negative, got {short_repr(value)}")
    return number


def max_hold(argument: str, value: object, timeout: object, at_least_for: object) -> float:
    """Return seconds that are longer than `timeout` and `at_least_for`."""
    number, minimum = lease(argument, value), at_least("at_least_for", at_least_for)
    for name, shorter in ("timeout", lease("timeout", timeout)), ("at_least_for", minimum):
        if number <= shorter:
            raise ValueError(f"{argument}={number:g} must be greater than {name}={shorter:g}")
    return number


def at_least(argument: str, value: object) -> float:
    """Return the seconds, from 0 to 10 years."""
    number = seconds(argument, value)
    if not 0 <= number <= MAX_LEASE_SECONDS:
        raise ValueError(f"{argument} must be from 0 to 10 years, got {short_repr(value)}")
    return number


def count(argument: str, value: object, *, least: int = 1, most: int = MAX_COUNT) -> int:
    """Return a whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{argument} must be an int, got {short_repr(value)}")
    if not least <= value <= most:
        raise ValueError(f"{argument} must be from {least} to {most:,}, got {short_repr(value)}")
    return int(value)  # A subclass such as an Enum can have another text.


def aliases(argument: str, value: object) -> list[str]:
    """Return the cache aliases of a quorum, sorted. Warns if their number is even or 1."""
    found: list[Any] = [None]
    if isinstance(value, Iterable) and not isinstance(value, str):
        found = list(value)
    if not all(isinstance(alias, str) for alias in found):
        raise TypeError(f"{argument} must be a list of cache aliases, got {short_repr(value)}")
    if not found or len(set(found)) < len(found):
        raise ValueError(
            f"{argument} must be a list of different cache aliases, got {short_repr(found)}"
        )
    if len(found) % 2 == 0 or len(found) == 1:
        warnings.warn(
            f"{argument}={short_repr(found)}: a quorum of {len(found)} tolerates the failure of "
            f"{(len(found) - 1) // 2} server(s). Use an odd number of servers, at least 3.",
            RuntimeWarning,
            stacklevel=3,
        )
    return sorted(found)


def check_options(call: str, options: Iterable[str], known: Container[str]) -> None:
    """Raise `TypeError` if `call` got an option that is not in `known`."""
    for option in options:
        if option not in known:
            raise TypeError(f"{call}() got an unexpected keyword argument {option!r}")


def flag(argument: str, value: object) -> bool:
    """Return True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{argument} must be True or False, got {short_repr(value)}")
    return value


def database(argument: str, value: object) -> str | None:
    """Return a database alias, or None for False. True means the default database."""
    if not isinstance(value, bool | str):
        raise TypeError(
            f"{argument} must be True, False or an alias of DATABASES, got {short_repr(value)}"
        )
    alias = (DEFAULT_DB_ALIAS if value is True else value) or None
    if alias and alias not in connections.settings:
        raise ValueError(f"{argument} must be an alias of DATABASES, got {short_repr(value)}")
    return alias


def callback(argument: str, value: Any) -> Callable[..., object] | None:
    """Return a callable that is not a coroutine function, or None."""
    if value is None:
        return None
    if not callable(value):
        raise TypeError(f"{argument} must be callable, got {short_repr(value)}")
    if inspect.iscoroutinefunction(value):
        raise TypeError(
            f"{argument} must be a synchronous function, got the async {short_repr(value)}"
        )
    function: Callable[..., object] = value
    return function


def on_lost(argument: str, value: Any) -> Callable[..., object] | Literal["abort"] | None:
    """Return a callback, ``"abort"`` or None."""
    if isinstance(value, str) and value != "abort":
        raise ValueError(f"{argument} must be a callable or 'abort', got {short_repr(value)}")
    return "abort" if value == "abort" else callback(argument, value)


def token(argument: str, value: object) -> str:
    """Return a lock token: 1 to 128 printable ASCII characters without spaces and colons."""
    if isinstance(value, bytes):
        value = value.decode("ascii", "replace")
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a str or bytes, got {short_repr(value)}")
    if not _TOKEN.fullmatch(value):
        raise ValueError(
            f"{argument} must be 1 to 128 printable ASCII characters "
            f"without spaces and colons, got {short_repr(value)}"
        )
    return value


def reported_token(argument: str, value: object) -> str:
    """Return a lock token that Redis reported.

    Another program can write records with any text as the token. An operator must still be able
    to release such a record.
    """
    return str.__str__(value) if isinstance(value, str) else token(argument, value)


def reason(argument: str, value: object) -> str:
    """Return the reason of a force-release, or an empty text for None."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a str or None, got {short_repr(value)}")
    if len(value) > MAX_REASON_CHARACTERS:
        raise ValueError(
            f"{argument} must have at most {MAX_REASON_CHARACTERS} characters, got {len(value)}"
        )
    return value


def metadata(argument: str, value: object) -> dict[str, Any]:
    """Return the metadata of a holder: a mapping that can be serialized as JSON."""
    if value is None:
        return {}
    # The errors do not quote values, because REDISLOCK_REDACT may hide them.
    if not isinstance(value, Mapping):
        raise TypeError(f"{argument} must be a mapping with str keys, got {_kind(value)}")
    if other := [key for key in value if not isinstance(key, str)]:
        raise TypeError(
            f"{argument} must be a mapping with str keys, "
            f"got the key {short_repr(other[0])} ({_kind(other[0])})"
        )
    too_long = f"{argument} must be at most {MAX_METADATA_CHARACTERS} characters as JSON"
    if _is_longer(value, MAX_METADATA_CHARACTERS):
        raise ValueError(too_long)
    try:
        text = _to_json(dict(value))
    except RecursionError as error:
        raise ValueError(f"{argument} is nested too deeply") from error
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"{argument} must be serializable as JSON, but {_unserializable(value)}"
        ) from error
    if len(text) > MAX_METADATA_CHARACTERS:
        raise ValueError(too_long)
    serialized: dict[str, Any] = json.loads(text)
    if is_deep(serialized):
        raise ValueError(f"{argument} must have at most {MAX_METADATA_LEVELS} nested levels")
    return serialized


_to_json = DjangoJSONEncoder(allow_nan=False).encode


def _is_longer(value: object, characters: int) -> bool:
    """Return whether the JSON of a value must have more characters, without making it.

    To serialize a text of many megabytes would stop the other threads of the process.
    """
    rest = [value]
    while rest:
        each = rest.pop()
        characters -= 1
        if isinstance(each, str | Mapping | list | tuple):
            characters -= len(each)
        if characters < 0:
            return True
        if isinstance(each, Mapping):
            rest += each.keys()
            rest += each.values()
        elif isinstance(each, list | tuple):
            rest += each
    return False


def _unserializable(value: Mapping[str, Any]) -> str:
    """Return which value of the metadata is not serializable, and why."""
    for key, each in value.items():
        try:
            _to_json(each)
        except (TypeError, ValueError) as error:
            return f"the value of {short_repr(key)} ({_kind(each)}) is not: {error}"
    return "it changes"


def _kind(value: object) -> str:
    return type(value).__name__


def is_deep(value: object, levels: int = MAX_METADATA_LEVELS) -> bool:
    """Return whether a value has too many nested levels. Such a value could break its reader."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return False
    return levels == 0 or any(is_deep(each, levels - 1) for each in value)
