"""A readable text for each value, the same before and after it was sent as JSON."""

import json
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from django.db.models import Model
from django.utils.duration import duration_iso_string

JSON_KEYS = (str, int, float, bool, type(None))


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
