"""The name of the lock, from a readable text for each argument of the call.

The text is the same before and after the argument was sent as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from enum import Enum
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.core.exceptions import ImproperlyConfigured
from django.db.models import Model
from django.utils.duration import duration_iso_string

from django_redislock.names import Template, arguments, check_name, fit_name

if TYPE_CHECKING:
    from .options import Options
    from .single import Call

KeyOf = Callable[["Call"], str]

JSON_KEYS = (str, int, float, bool, type(None))


def key_maker(options: Options, signature: Signature) -> KeyOf:
    """Return what makes the lock's name for a call.

    Raises `ImproperlyConfigured` if an option names an argument that
    `signature` does not have.
    """
    key = options.key
    if callable(key):
        return lambda call: check_name(key(*call.sent_args, **call.kwargs), "the result of key")
    if key is not None:
        template = Template(key, signature, "key")
        return lambda call: template.of_call(call.args, call.kwargs)
    if options.unique_on is None:
        return lambda call: fit_name(call.name)
    return _key_of_arguments(
        None if options.unique_on == "*" else set(options.unique_on), signature
    )


def _key_of_arguments(unique_on: set[str] | None, signature: Signature) -> KeyOf:
    """Return what makes a name of these arguments, or of all, in the order of the signature."""
    parameters = signature.parameters
    by_kind = {each.kind: name for name, each in parameters.items()}
    keywords = by_kind.get(Parameter.VAR_KEYWORD, "")
    unknown = sorted((unique_on or set()).difference(parameters))
    if unknown and not keywords:
        raise ImproperlyConfigured(
            f"unique_on names {', '.join(map(repr, unknown))}, but the function has no such"
            f" parameter (its parameters: {', '.join(parameters) or 'none'})"
        )
    known = [name for name in parameters if unique_on is None or name in unique_on]

    def key_of(call: Call) -> str:
        given = arguments(signature, call.args, call.kwargs)
        if keywords and unique_on:
            given = {**given[keywords], **given}
        texts = []
        for name in known + unknown if unique_on else known[call.added_args :]:
            if name not in given:
                raise ValueError(f"unique_on names {name!r}, which this call does not have")
            try:
                texts.append(f"{name}={text_of(given[name])}")
            except (TypeError, ValueError) as error:
                raise type(error)(
                    f"Argument {name!r} cannot be part of the lock name: {error}"
                ) from error
        return fit_name(f"{call.name}:{','.join(texts)}" if texts else call.name)

    return key_of


def text_of(value: object) -> str:
    """Return the text of `value`. Equal values of one type have the same text.

    Values of different types differ (``1``, ``1.0``, ``"1"``, ``true``), unless JSON turns one
    into the other: lists and tuples, strings or numbers and enums of them, dictionary keys.

    Raises:
        TypeError: The type has no lasting text.
        ValueError: The value is a model that is not saved.
    """
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():  # the value of a StrEnum
            return json.dumps(str.__str__(value), ensure_ascii=False)
        case int():
            return int.__repr__(value)
        case float():
            return float.__repr__(value or 0.0)  # -0.0 equals 0.0
        case Decimal():
            return f"Decimal({_shortest(value) if value.is_finite() else value})"
        case UUID():
            return str(value)
        case datetime():  # in UTC, because the time zone does not matter
            return (value.astimezone(UTC) if value.utcoffset() is not None else value).isoformat()
        case date() | time():
            return value.isoformat()
        case timedelta():
            return duration_iso_string(value)
        case bytes():
            return bytes.__repr__(value)
        case list() | tuple():
            return f"[{','.join(map(text_of, value))}]"
        case set() | frozenset():
            return f"set({','.join(sorted(map(text_of, value)))})"
        case dict():
            return f"{{{','.join(_item_texts(value.items()))}}}"
        case Enum():  # without another type
            return f"{type(value).__qualname__}.{value.name or value.value}"
        case Model():
            return _model_text(value)
    raise TypeError(
        f"{type(value).__module__}.{type(value).__qualname__} is not supported."
        " Pass an identifier instead, such as a primary key, or use key=."
    )


def _item_texts(items: Iterable[tuple[Any, Any]]) -> list[str]:
    """Return the texts of a dictionary's items. In JSON, each key is a string."""
    texts = []
    for key, item in items:
        text = text_of(key)
        is_converted = isinstance(key, JSON_KEYS) and not isinstance(key, str)
        texts.append(f"{json.dumps(text) if is_converted else text}:{text_of(item)}")
    return sorted(texts)


def _model_text(instance: Model) -> str:
    if instance.pk is None or instance._state.adding:
        raise ValueError(f"this {instance._meta.label} is not saved. Save it first.")
    # A proxy model has the same rows.
    model = instance._meta.concrete_model or type(instance)
    return f"{model._meta.label_lower}:{text_of(instance.pk)}"


def _shortest(value: Decimal) -> str:
    """Return a number without the zeros at its end, unrounded."""
    digits = Context(prec=max(1, len(value.as_tuple().digits)))
    number = value.normalize(digits) if value else Decimal(0)
    return format(number, "f") if abs(number.adjusted()) < digits.prec + 30 else str(number)
