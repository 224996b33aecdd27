"""The locks as Django's admin asks for them: a query set that is a list."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter, eq
from types import SimpleNamespace
from typing import Any

from django.core.exceptions import FieldError
from django.db.models import Q

from ..lock_state import SEVERITY
from ..models import ActiveLock
from ..snapshots import Holding
from ..text import holder_text, task_text

LockTest = Callable[[ActiveLock], bool]

FIELDS = {"pk": "name", "name": "name", "using": "using"}
"""The fields of a lookup, each with the attribute of `ActiveLock` that it reads."""

LOOKUPS: Mapping[str, Callable[[str, Any], bool]] = {
    "exact": eq,
    "in": lambda text, values: text in values,
    "startswith": str.startswith,
}


def _of_holder(value: Callable[[Holding], Any]) -> Callable[[ActiveLock], Any]:
    return lambda row: value(row.primary) if row.primary else None


SORT_KEYS: Mapping[str, Callable[[ActiveLock], Any]] = {
    "name": attrgetter("name"),
    "state": lambda row: SEVERITY[row.state.code],
    "lease": _of_holder(attrgetter("expires_at")),
    "waiters": attrgetter("info.waiters"),
    "age": _of_holder(lambda holding: -holding.acquired_at.timestamp()),
    "holder": _of_holder(holder_text),
    "task": _of_holder(lambda holding: task_text(holding) or None),
    "using": attrgetter("using"),
}
"""The values by which the columns are sorted. None comes last in both directions."""


class LockQuerySet:
    """The locks that a user may see: the part of Django's `QuerySet` that fits a list.

    It is lazy, and finds its locks at most once.
    """

    model = ActiveLock

    totally_ordered = True
    """The locks have an order already, so Django's list (from 6.1 on) adds no column."""

    query = SimpleNamespace(select_related=True, order_by=())
    """For Django's list: no relation needs to be joined, and no order is given."""

    def __init__(
        self, find: Callable[[], list[ActiveLock]], tests: tuple[LockTest, ...] = ()
    ) -> None:
        self._find = find
        self.tests = tests

    @cached_property
    def rows(self) -> list[ActiveLock]:
        """The locks. Raises an error of redis-py if no cache alias can be read."""
        return self._find()

    def all(self) -> LockQuerySet:
        """Return the same locks."""
        return self

    distinct = all

    def filter(self, *conditions: Q, **lookups: Any) -> LockQuerySet:
        """Return the locks that match all the lookups, too.

        Args:
            conditions: Empty ones, from Django's list.
            lookups: Values of ``name`` (or ``pk``) and ``using``, the cache alias, also with
                ``__in`` and ``__startswith``.

        Raises:
            FieldError: A lookup is not supported.
        """
        if any(conditions):
            raise FieldError(
                "Locks cannot be filtered by Q(): where() takes a function of a lock."
            )
        narrowed = self
        for lookup, value in lookups.items():
            narrowed = narrowed.where(_test_of(lookup, value))
        return narrowed

    def none(self) -> LockQuerySet:
        """Return no locks."""
        return self.where(lambda lock: False)

    def where(self, test: LockTest) -> LockQuerySet:
        """Return the locks for which the function returns True, too."""
        return LockQuerySet(lambda: [*filter(test, self.rows)], (*self.tests, test))

    def matches(self, lock: ActiveLock) -> bool:
        """Return whether the lock passes all tests. It need not be one that was read."""
        return all(test(lock) for test in self.tests)

    def order_by(self, *columns: str) -> LockQuerySet:
        """Return the locks in another order. Unknown columns are left out."""
        known = [each for each in columns if each.removeprefix("-") in SORT_KEYS]
        return LockQuerySet(lambda: _ordered(self.rows, known), self.tests) if known else self

    def count(self) -> int:
        return len(self.rows)

    __len__ = count

    def __iter__(self) -> Iterator[ActiveLock]:
        return iter(self.rows)

    def __getitem__(self, place: slice) -> list[ActiveLock]:
        return self.rows[place]

    def _clone(self) -> list[ActiveLock]:
        """Return the rows. Django's list calls this if they fit on one page."""
        return self.rows


def _ordered(rows: list[ActiveLock], columns: Sequence[str]) -> list[ActiveLock]:
    for column in reversed(columns):
        key = SORT_KEYS[column.removeprefix("-")]
        known = [row for row in rows if key(row) is not None]
        unknown = [row for row in rows if key(row) is None]
        rows = sorted(known, key=key, reverse=column.startswith("-")) + unknown
    return rows


def _test_of(lookup: str, value: Any) -> LockTest:
    field, _, name = lookup.partition("__")
    test = LOOKUPS.get(name or "exact")
    if field not in FIELDS or test is None:
        fields, lookups = ", ".join(FIELDS), ", ".join(LOOKUPS)
        raise FieldError(
            f"Locks cannot be filtered by {lookup!r}. Fields: {fields}. Lookups: {lookups}."
            " where() takes a function of a lock."
        )
    expected = tuple(value) if name == "in" else value  # an iterator can be read only once
    return lambda lock: test(getattr(lock, FIELDS[field]), expected)
