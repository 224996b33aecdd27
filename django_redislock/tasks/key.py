"""The part of a lock's name that depends on the arguments: a readable text for each of them.

The text is the same before and after the argument was sent as JSON.
"""

import json
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, date, datetime, time, timedelta
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from enum import Enum
from functools import singledispatch
from inspect import Signature
from typing import Any
from uuid import UUID

from django.core.exceptions import ImproperlyConfigured
from django.db.models import Model
from django.utils.duration import duration_iso_string
from django.utils.functional import Promise

from django_redislock.names import MAX_NAME_BYTES, Arguments, digest_of, identity_of

MAX_DIGITS = 4300
"""The limit of digits in a Decimal. Python has the same one for the text of an int."""

MAX_ZEROS = 30
"""The limit of zeros in the text of a Decimal, which otherwise has an exponent."""

_to_json = json.JSONEncoder(ensure_ascii=False).encode


def arguments_text(unique_on: Collection[str], signature: Signature) -> Callable[..., str]:
    """Return what makes a text of the arguments of a call, in the order of the signature.

    Args:
        unique_on: The names of the arguments, or ``"*"`` for all.
        signature: The signature of the function.

    Returns:
        A function of the positional arguments, the keyword arguments, and the number of positional
        arguments that are not part of ``"*"``.

    Raises:
        ImproperlyConfigured: The signature has no such parameter.
    """
    parameters = list(signature.parameters)
    wanted = parameters
    if unique_on != "*":
        unknown = sorted(set(unique_on).difference(parameters))
        if unknown:
            raise ImproperlyConfigured(
                f"unique_on names {', '.join(map(repr, unknown))}, but the function has no such"
                f" parameter (its parameters: {', '.join(parameters) or 'none'})"
            )
        wanted = [name for name in parameters if name in unique_on]
    arguments = Arguments(signature)

    def text_for(args: tuple[Any, ...], kwargs: dict[str, Any], added_args: int) -> str:
        given = arguments.of_call(args, kwargs)
        names = wanted
        if unique_on == "*":
            names = wanted[added_args:]
        texts = []
        for name in names:
            try:
                texts.append(f"{name}={text_of(given[name])}")
            except (TypeError, ValueError) as error:
                raise type(error)(
                    f"Argument {name!r} cannot be part of the lock name: {error}"
                ) from error
        return ",".join(texts)

    return text_for


@singledispatch
def text_of(value: object) -> str:
    """Return the text of `value`. Equal values of one type have the same text.

    Values of different types differ (``1``, ``1.0``, ``"1"``, ``true``), unless JSON turns one
    into the other: lists and tuples, strings or numbers and enums of them, dictionary keys.

    Raises:
        TypeError: The type has no lasting text.
        ValueError: The value is a model that is not saved, or a number with too many digits.
    """
    raise TypeError(
        f"{type(value).__module__}.{type(value).__qualname__} is not supported."
        " Pass an identifier instead, such as a primary key, or use key=."
    )


@text_of.register
def _(value: None) -> str:
    return "null"


@text_of.register
def _(value: bool) -> str:
    return str(value).lower()


@text_of.register
def _(value: str) -> str:
    return _quoted(str.__str__(value))  # the value of a StrEnum


@text_of.register
def _(value: Promise) -> str:
    return _quoted(str(value))  # a lazy text, which Celery sends as text


@text_of.register
def _(value: int) -> str:
    return int.__repr__(value)


@text_of.register
def _(value: float) -> str:
    return float.__repr__(value or 0.0)  # -0.0 equals 0.0


@text_of.register
def _(value: Decimal) -> str:
    return f"Decimal({_shortest(value)})"


@text_of.register
def _(value: UUID) -> str:
    return str(value)


@text_of.register
def _(value: date | time) -> str:
    return value.isoformat()


@text_of.register
def _(value: datetime) -> str:
    # In UTC, because the time zone does not matter.
    return (value.astimezone(UTC) if value.utcoffset() is not None else value).isoformat()


@text_of.register
def _(value: timedelta) -> str:
    return duration_iso_string(value)


@text_of.register
def _(value: bytes) -> str:
    if len(value) <= MAX_NAME_BYTES:
        return bytes.__repr__(value)
    return f"{value[:MAX_NAME_BYTES]!r}#{digest_of(value.decode('latin-1'))}"


@text_of.register(list | tuple)
def _(value: Iterable[object]) -> str:
    return f"[{','.join(map(text_of, value))}]"


@text_of.register(set | frozenset)
def _(value: Iterable[object]) -> str:
    return f"set({','.join(sorted(map(text_of, value)))})"


@text_of.register(dict)
def _(value: dict[object, object]) -> str:
    # In JSON, each key is a string.
    keys = {key: key if isinstance(key, str) else text_of(key) for key in value}
    items = (f"{_quoted(keys[key])}:{text_of(item)}" for key, item in value.items())
    return f"{{{','.join(sorted(items))}}}"


@text_of.register
def _(value: Enum) -> str:  # without another type
    return f"{type(value).__qualname__}.{value.name or value.value}"


@text_of.register
def _(value: Model) -> str:
    label, pk = identity_of(value)
    return f"{label}:{text_of(pk)}"


def _quoted(text: str) -> str:
    """Return a text in quotes. Of a long one, which no name has room for, return the beginning and
    a digest.

    A sender can choose the text. To quote and sort many megabytes would stop the other threads of
    the process, such as the renewal of locks.
    """
    if len(text) <= MAX_NAME_BYTES:
        return _to_json(text)
    # No other text has a "#" after its closing quote.
    return f"{_to_json(text[:MAX_NAME_BYTES])}#{digest_of(text)}"


def _shortest(value: Decimal) -> str:
    """Return a number without the zeros at its end, unrounded."""
    if len(str(value)) > MAX_DIGITS:
        raise ValueError(f"this Decimal has more than {MAX_DIGITS} digits")
    exact = Context(prec=MAX_DIGITS, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[])
    number = exact.plus(value.normalize(exact))  # -0 equals 0
    has_few_zeros = abs(number.adjusted()) < MAX_ZEROS
    return format(number, "f") if has_few_zeros else str(number)
