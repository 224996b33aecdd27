"""Checks of arguments, each with an error that names the argument and the value."""

import inspect
import json
import math
import re
import warnings
from collections.abc import Callable, Container, Iterable, Mapping
from datetime import timedelta
from typing import Any, Literal, TypeAlias

from django.core.serializers.json import DjangoJSONEncoder
from django.db import DEFAULT_DB_ALIAS, connections

Seconds: TypeAlias = float | timedelta
"""Seconds as int, float or `timedelta`."""

SHORTEST_LEASE = 0.01
LONGEST_LEASE = 10 * 365 * 24 * 3600.0
LONGEST_METADATA = 4096
DEEPEST_METADATA = 50
LARGEST_COUNT = 1_000_000

_TOKEN = re.compile("[!-9;-~]{1,128}")


def seconds(argument: str, value: object) -> float:
    """Return a finite number of seconds."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{argument} must be a number of seconds or a timedelta, got {value!r}")
    try:
        length = float(value)
    except OverflowError:
        length = math.inf
    if not math.isfinite(length):
        raise ValueError(f"{argument} must be finite, got {value!r}")
    return length


def lease(argument: str, value: object) -> float:
    """Return the seconds of a lease, from 10 ms to 10 years."""
    length = seconds(argument, value)
    if not SHORTEST_LEASE <= length <= LONGEST_LEASE:
        raise ValueError(f"{argument} must be from 10 ms to 10 years, got {value!r}")
    return length


def extension(argument: str, value: object, left: float) -> float:
    """Return the seconds of an extension of a lease, which can last up to 10 years in total."""
    length = lease(argument, value)
    if left + length > LONGEST_LEASE:
        raise ValueError(f"{argument} must not extend the lease beyond 10 years, got {value!r}")
    return length


def wait(argument: str, value: object) -> float | None:
    """Return the seconds to wait, or None for an unlimited wait."""
    if value is None:
        return None
    length = seconds(argument, value)
    if length < 0:
        raise ValueError(f"{argument} must not be negative, got {value!r}")
    return length


def at_least(argument: str, value: object) -> float:
    """Return the seconds, from 0 to 10 years."""
    length = seconds(argument, value)
    if not 0 <= length <= LONGEST_LEASE:
        raise ValueError(f"{argument} must be from 0 to 10 years, got {value!r}")
    return length


def count(argument: str, value: object, *, least: int = 1, most: int = LARGEST_COUNT) -> int:
    """Return a whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{argument} must be an int, got {value!r}")
    if not least <= value <= most:
        raise ValueError(f"{argument} must be from {least} to {most:,}, got {value!r}")
    return int(value)  # An int subclass, such as an Enum, can have another text.


def replicas(argument: str, value: object) -> int:
    """Return the value if it is a number of replicas, from 0 to 100."""
    return count(argument, value, least=0, most=100)


def aliases(argument: str, value: object) -> list[str]:
    """Return the cache aliases of a quorum, sorted. Warns if their number is even or 1."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"{argument} must be a list of cache aliases, got {value!r}")
    given = list(value)
    if not all(isinstance(alias, str) for alias in given):
        raise TypeError(f"{argument} must be a list of cache aliases, got {given!r}")
    if not given or len(set(given)) < len(given):
        raise ValueError(f"{argument} must be a list of different cache aliases, got {given!r}")
    if len(given) % 2 == 0 or len(given) == 1:
        warnings.warn(
            f"{argument}={given!r}: a quorum of {len(given)} tolerates the failure of "
            f"{(len(given) - 1) // 2} server(s). Use an odd number of servers, at least 3.",
            RuntimeWarning,
            stacklevel=3,
        )
    return sorted(given)


def check_options(call: str, options: Iterable[str], known: Container[str]) -> None:
    """Raise `TypeError` if `call` got an option that is not in `known`."""
    for option in options:
        if option not in known:
            raise TypeError(f"{call}() got an unexpected keyword argument {option!r}")


def flag(argument: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{argument} must be True or False, got {value!r}")
    return value


def database(argument: str, value: object) -> str | None:
    """Return a database alias, or None for False. True means the default database."""
    if not isinstance(value, bool | str):
        raise TypeError(f"{argument} must be True, False or an alias of DATABASES, got {value!r}")
    alias = (DEFAULT_DB_ALIAS if value is True else value) or None
    if alias and alias not in connections.settings:
        raise ValueError(f"{argument} must be an alias of DATABASES, got {value!r}")
    return alias


def callback(argument: str, value: Any) -> Callable[..., object] | None:
    if value is None:
        return None
    if not callable(value):
        raise TypeError(f"{argument} must be callable, got {value!r}")
    if inspect.iscoroutinefunction(value):
        raise TypeError(f"{argument} must be a synchronous function, got the async {value!r}")
    found: Callable[..., object] | None = value
    return found


def on_lost(argument: str, value: Any) -> Callable[..., object] | Literal["abort"] | None:
    if isinstance(value, str) and value != "abort":
        raise ValueError(f"{argument} must be a callable or 'abort', got {value!r}")
    return "abort" if value == "abort" else callback(argument, value)


def token(argument: str, value: object) -> str:
    """Return a lock token: 1 to 128 printable ASCII characters without spaces and colons."""
    if isinstance(value, bytes):
        value = value.decode("ascii", "replace")
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a str or bytes, got {value!r}")
    if not _TOKEN.fullmatch(value):
        raise ValueError(
            f"{argument} must be 1 to 128 printable ASCII characters "
            f"without spaces and colons, got {value!r}"
        )
    return value


def reported_token(argument: str, value: object) -> str:
    """Return a lock token that Redis reported.

    Another program may write records, too, so the token can be any text. Such a record must still
    be possible to release.
    """
    if isinstance(value, str):
        return str.__str__(value)
    return token(argument, value)


def metadata(argument: str, value: object) -> dict[str, Any]:
    """Return the metadata of a holder: a mapping that can be serialized as JSON."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise TypeError(f"{argument} must be a mapping with str keys, got {value!r}")
    try:
        text = json.dumps(dict(value), cls=DjangoJSONEncoder, allow_nan=False)
    except RecursionError as error:
        raise ValueError(f"{argument} is nested too deeply") from error
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"{argument} must be serializable as JSON ({error}), got {value!r}"
        ) from error
    if len(text) > LONGEST_METADATA:
        raise ValueError(f"{argument} must be at most {LONGEST_METADATA} characters as JSON")
    told: dict[str, Any] = json.loads(text)
    if is_deep(told):
        raise ValueError(f"{argument} must have at most {DEEPEST_METADATA} nested levels")
    return told


def is_deep(value: object, levels: int = DEEPEST_METADATA) -> bool:
    """Return whether a value has too many nested levels, which could break its reader."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return False
    return levels == 0 or any(is_deep(each, levels - 1) for each in value)
