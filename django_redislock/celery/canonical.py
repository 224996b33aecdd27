"""One readable text per value, the same before and after it travelled as JSON."""

import json
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from enum import Enum
from functools import singledispatch
from typing import Any
from uuid import UUID

from django.db.models import Model
from django.utils.duration import duration_iso_string

_JSON_KEYS = (str, int, float, bool, type(None))


@singledispatch
def text_of(value: object) -> str:
    """Return the text of `value`; equal values of one type have the same.

    Values of different types differ (``1``, ``1.0``, ``"1"``, ``true``) except
    where JSON makes one of the other: lists and tuples, strings or numbers and
    the enums made of them, dictionary keys. Raises `TypeError` for types
    without a text that lasts, `ValueError` for a model that is not saved.
    """
    raise TypeError(
        f"{type(value).__module__}.{type(value).__qualname__} is not supported."
        " Pass an identifier instead, such as a primary key, or use key=."
    )


@text_of.register
def _(value: str) -> str:
    return json.dumps(str.__str__(value), ensure_ascii=False)


@text_of.register
def _(value: None) -> str:
    return "null"


@text_of.register
def _(value: bool) -> str:
    return "true" if value else "false"


@text_of.register
def _(value: int) -> str:
    return int.__repr__(value)


@text_of.register
def _(value: float) -> str:
    # -0.0 equals 0.0.
    return float.__repr__(value or 0.0)


@text_of.register
def _(value: Decimal) -> str:
    return f"Decimal({_shortest(value) if value.is_finite() else value})"


@text_of.register
def _(value: UUID) -> str:
    return str(value)


@text_of.register
def _(value: datetime) -> str:
    # One moment has one text, whatever its time zone.
    return (value.astimezone(UTC) if value.utcoffset() is not None else value).isoformat()


@text_of.register(date)
@text_of.register(time)
def _(value: date | time) -> str:
    return value.isoformat()


@text_of.register
def _(value: timedelta) -> str:
    return duration_iso_string(value)


@text_of.register
def _(value: Enum) -> str:
    return f"{type(value).__qualname__}.{value.name or value.value}"


@text_of.register
def _(value: bytes) -> str:
    return bytes.__repr__(value)


@text_of.register(list)
@text_of.register(tuple)
def _(value: Iterable[Any]) -> str:
    return f"[{','.join(map(text_of, value))}]"


@text_of.register(set)
@text_of.register(frozenset)
def _(value: Iterable[Any]) -> str:
    return f"set({','.join(sorted(map(text_of, value)))})"


@text_of.register
def _(value: dict) -> str:  # type: ignore[type-arg]  # singledispatch wants the bare class
    items = sorted(f"{_key_text(key)}:{text_of(item)}" for key, item in value.items())
    return f"{{{','.join(items)}}}"


@text_of.register
def _(value: Model) -> str:
    if value.pk is None or value._state.adding:
        raise ValueError(f"this {value._meta.label} is not saved. Save it first.")
    # A proxy of a row is that row.
    model = value._meta.concrete_model or type(value)
    return f"{model._meta.label_lower}:{text_of(value.pk)}"


def _key_text(key: object) -> str:
    """Return the text of a dictionary's key: in JSON it is a string."""
    text = text_of(key)
    return json.dumps(text) if isinstance(key, _JSON_KEYS) and not isinstance(key, str) else text


def _shortest(value: Decimal) -> str:
    """Return a number without the zeros at its end, unrounded."""
    digits = Context(prec=max(1, len(value.as_tuple().digits)))
    number = value.normalize(digits) if value else Decimal(0)
    return format(number, "f") if abs(number.adjusted()) < digits.prec + 30 else str(number)
