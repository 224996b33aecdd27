"""The locks as Django's admin asks for them: a query set that is a list."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from django.core.exceptions import FieldError
from django.db.models import Q

from ..lock_state import SEVERITY
from ..models import ActiveLock
from ..snapshots import Holding
from ..text import holder_text, task_text

LockTest = Callable[[ActiveLock], bool]


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
        """The locks. Raises an error of redis-py if the cache alias cannot be read."""
        return self._find()

    def all(self) -> LockQuerySet:
        """Return the same locks."""
        return self

    distinct = all

    def filter(self, *conditions: Q, pk__in: Sequence[str] | None = None) -> LockQuerySet:
        """Return these locks, or those with the names in `pk__in`. Django's list calls this with
        the lookups of the address, and then with the rows that the user has selected.

        Raises:
            FieldError: The address has a lookup. The filters of the list are tests.
        """
        if any(conditions):
            raise FieldError("Locks cannot be filtered by lookups. Use where().")
        if pk__in is None:
            return self
        return self.where(lambda lock: lock.name in pk__in)

    def where(self, test: LockTest) -> LockQuerySet:
        """Return the locks for which `test(lock)` is true, too."""
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
