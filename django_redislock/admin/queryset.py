"""The locks as Django's admin asks for them: a query set that is a list."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter, contains, eq
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
    "contains": contains,
    "startswith": str.startswith,
    "endswith": str.endswith,
    "iexact": lambda text, value: text.casefold() == value.casefold(),
    "icontains": lambda text, value: value.casefold() in text.casefold(),
    "istartswith": lambda text, value: text.casefold().startswith(value.casefold()),
    "iendswith": lambda text, value: text.casefold().endswith(value.casefold()),
}

COMBINATIONS: Mapping[str, Callable[[list[bool]], bool]] = {
    Q.AND: all,
    Q.OR: any,
    Q.XOR: lambda found: sum(found) % 2 == 1,
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
    "fencing_token": _of_holder(attrgetter("fence_token")),
    "kind": attrgetter("info.kind"),
    "using": attrgetter("using"),
}
"""The values by which the columns are sorted. None comes last in both directions."""


class LockQuerySet:
    """The locks that a user may see: the part of Django's `QuerySet` that fits a list.

    A lookup can use `name` (or `pk`) and `using`, the cache alias. It is evaluated in Python.
    A query set is lazy, and finds its locks at most once.
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

    def filter(self, *args: Any, **lookups: Any) -> LockQuerySet:
        """Return the locks that match all the lookups, too. Raise `FieldError` if one is not
        supported."""
        condition = Q(*filter(None, args), **lookups)
        return self.where(_test_of(condition)) if condition else self

    def exclude(self, *args: Any, **lookups: Any) -> LockQuerySet:
        """Return the locks that do not match all the lookups."""
        return self.filter(~Q(*filter(None, args), **lookups))

    def none(self) -> LockQuerySet:
        """Return no locks."""
        return self.filter(name__in=())

    def where(self, test: LockTest) -> LockQuerySet:
        """Return the locks that pass the test, too."""
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


def _test_of(condition: Any) -> LockTest:
    """Return the test of a `Q` object, or of one of its lookups.

    Raises:
        FieldError: A lookup is not supported.
    """
    if isinstance(condition, tuple):
        return _test_of_lookup(*condition)
    tests = [*map(_test_of, condition.children)]
    if not tests:  # as in Django, also if it is negated
        return lambda lock: True
    combine = COMBINATIONS[condition.connector]
    return lambda lock: combine([test(lock) for test in tests]) is not condition.negated


def _test_of_lookup(lookup: str, value: Any) -> LockTest:
    field, _, name = lookup.partition("__")
    test = LOOKUPS.get(name or "exact")
    if field not in FIELDS or test is None:
        fields, lookups = ", ".join(FIELDS), ", ".join(LOOKUPS)
        raise FieldError(
            f"Locks cannot be filtered by {lookup!r}. Fields: {fields}. Lookups: {lookups}."
        )
    expected = tuple(value) if name == "in" else value  # an iterator can be read only once
    return lambda lock: test(getattr(lock, FIELDS[field]), expected)
