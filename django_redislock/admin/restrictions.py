"""Restrict the locks that a user may see or release, for subclasses of `ActiveLockAdmin`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import FieldError
from django.db.models import Q

from ..models import ActiveLock

LockTest = Callable[[ActiveLock], bool]

FIELDS = {"pk": "name", "name": "name", "using": "using"}
"""The fields of a lookup, each with the attribute of `ActiveLock` that it reads."""

LOOKUPS: Mapping[str, Callable[[str, Any], bool]] = {
    "exact": lambda text, value: text == value,
    "iexact": lambda text, value: text.casefold() == value.casefold(),
    "in": lambda text, value: text in value,
    "contains": lambda text, value: value in text,
    "icontains": lambda text, value: value.casefold() in text.casefold(),
    "startswith": lambda text, value: text.startswith(value),
    "istartswith": lambda text, value: text.casefold().startswith(value.casefold()),
    "endswith": lambda text, value: text.endswith(value),
    "iendswith": lambda text, value: text.casefold().endswith(value.casefold()),
    "regex": lambda text, value: re.search(value, text) is not None,
    "iregex": lambda text, value: re.search(value, text, re.IGNORECASE) is not None,
}


@dataclass(frozen=True, slots=True)
class LockQuery:
    """The locks that a user may see: the part of Django's `QuerySet` that fits rows from Redis.

    A lookup can use `name` (or `pk`) and `using`, the cache alias. It is evaluated in Python.
    """

    conditions: tuple[Q, ...] = ()

    def all(self) -> LockQuery:
        """Return the same locks."""
        return self

    def filter(self, *args: Any, **lookups: Any) -> LockQuery:
        """Return the locks that match all the lookups, too."""
        return LockQuery((*self.conditions, _condition(args, lookups)))

    def exclude(self, *args: Any, **lookups: Any) -> LockQuery:
        """Return the locks that do not match all the lookups."""
        return LockQuery((*self.conditions, ~_condition(args, lookups)))

    def none(self) -> LockQuery:
        """Return no locks."""
        return self.filter(name__in=())

    def matches(self, lock: ActiveLock) -> bool:
        """Return whether the lock is one of these.

        Raises:
            FieldError: A lookup is not supported.
        """
        return all(_matches(condition, lock) for condition in self.conditions)


def _condition(args: tuple[Any, ...], lookups: dict[str, Any]) -> Q:
    # An iterator can be read only once, but there are many locks to compare.
    values = {
        name: tuple(value) if name.endswith("__in") else value for name, value in lookups.items()
    }
    return Q(*args, **values)


def _matches(condition: Any, lock: ActiveLock) -> bool:
    if isinstance(condition, tuple):
        lookup, value = condition
        return _matches_lookup(lookup, value, lock)
    if not isinstance(condition, Q):
        raise FieldError(f"Locks cannot be filtered by {condition!r}. Use lookups and Q objects.")
    if not condition.children:  # as in Django, also if it is negated
        return True
    found = [_matches(child, lock) for child in condition.children]
    if condition.connector == Q.XOR:
        result = sum(found) % 2 == 1
    else:
        result = any(found) if condition.connector == Q.OR else all(found)
    return result is not condition.negated


def _matches_lookup(lookup: str, value: Any, lock: ActiveLock) -> bool:
    field, _, name = lookup.partition("__")
    test = LOOKUPS.get(name or "exact")
    if field not in FIELDS or test is None:
        fields, lookups = ", ".join(FIELDS), ", ".join(LOOKUPS)
        raise FieldError(
            f"Locks cannot be filtered by {lookup!r}. Fields: {fields}. Lookups: {lookups}."
        )
    return test(str(getattr(lock, FIELDS[field])), value)


def permits(method: Callable[..., bool], request: Any, lock: ActiveLock) -> bool:
    """Ask a permission method of the admin about one lock, or about locks in general if a subclass
    has written it without the argument `obj`."""
    try:
        inspect.signature(method).bind(request, lock)
    except TypeError:
        return method(request)
    return method(request, lock)
