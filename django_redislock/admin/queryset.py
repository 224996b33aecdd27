"""The locks as Django's admin asks for them: a query set whose rows come from Redis."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from itertools import repeat
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from django.core.exceptions import FieldError, ImproperlyConfigured
from django.db.models import Q
from redis.exceptions import RedisError

from ..lock_state import SEVERITY, longest_lease
from ..models import ActiveLock
from ..snapshots import Holding
from ..text import holder_text, task_text
from .aliases import Alias

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


def _expiry(row: ActiveLock) -> tuple[float, str]:
    return longest_lease(row.info.holders), row.name


def _trouble(row: ActiveLock) -> tuple[int, int, tuple[float, str]]:
    """Return a sort key: overdue renewals first, then the locks with the most waiters."""
    return min(SEVERITY[row.state.code], SEVERITY["late"] + 1), -row.info.waiters, _expiry(row)


def _of_holder(value: Callable[[Holding], Any]) -> Callable[[ActiveLock], Any]:
    return lambda row: value(row.primary) if row.primary else None


SORT_KEYS: dict[str, Callable[[ActiveLock], Any]] = {
    "name": lambda row: row.name,
    "kind": lambda row: row.info.kind,
    "state": lambda row: SEVERITY[row.state.code],
    "holder": _of_holder(holder_text),
    "task": _of_holder(lambda holding: task_text(holding) or None),
    "age": _of_holder(lambda holding: -holding.acquired_at.timestamp()),
    "lease": lambda row: longest_lease(row.info.holders),
    "waiters": lambda row: row.info.waiters,
    "fence": _of_holder(lambda holding: holding.fence_token),
    "using": lambda row: row.using,
}
"""The columns that a list can be sorted by. None comes last in both directions."""


BY_EXPIRY = ("lease",)
"""The order in which a server returns locks, so that one page can be read on its own."""


class LockQuerySet:
    """The locks that a user may see: the part of Django's `QuerySet` that fits rows from Redis.

    A lookup can use `name` (or `pk`) and `using`, the cache alias. It is evaluated in Python.
    A query set is lazy, and reads the locks at most once.
    """

    model = ActiveLock

    totally_ordered = True
    """Names break ties, so Django's list (from 6.1 on) needs no further column."""

    def __init__(
        self,
        aliases: Callable[[], Sequence[Alias]],
        *,
        list_max: int,
        page_depth: int,
        page_size: int,
    ) -> None:
        # A call, because a mistake in CACHES must not be an error before Redis is read.
        self.aliases = aliases
        self.list_max = list_max
        self.page_depth = page_depth
        self.page_size = page_size
        # For Django's list: no relation needs to be joined, and no order is given.
        self.query = SimpleNamespace(select_related=True, order_by=())
        self.restrictions: tuple[LockTest, ...] = ()
        self.conditions: tuple[LockTest, ...] = ()
        self.ordering: tuple[str, ...] = ()
        self.pattern: str | None = None
        self._forget()

    def _forget(self) -> None:
        self._start = 0
        self._rows: list[ActiveLock] | None = None
        self._total = 0
        self.held = 0
        """How many locks match the search."""
        self.read: list[ActiveLock] = []
        """The locks that were read to find the rows."""
        self.unreachable: list[tuple[str, Exception]] = []
        """The cache aliases that could not be read, and why."""

    def _clone(self) -> list[ActiveLock]:
        """Return the rows. Django's list calls this if they fit on one page."""
        return self[0 : self.count()]

    def _changed(self, **changes: Any) -> LockQuerySet:
        clone = copy(self)
        vars(clone).update(changes)
        clone._forget()
        return clone

    # What a subclass of the admin can use

    def all(self) -> LockQuerySet:
        """Return the same locks."""
        return self

    def filter(self, *args: Any, **lookups: Any) -> LockQuerySet:
        """Return the locks that match all the lookups, too."""
        if not (any(args) or lookups):
            return self
        condition = _condition(args, lookups)
        return self.restrict(lambda lock: _matches(condition, lock))

    def exclude(self, *args: Any, **lookups: Any) -> LockQuerySet:
        """Return the locks that do not match all the lookups."""
        condition = ~_condition(args, lookups)
        return self.restrict(lambda lock: _matches(condition, lock))

    def none(self) -> LockQuerySet:
        """Return no locks."""
        return self.filter(name__in=())

    def restrict(self, test: LockTest) -> LockQuerySet:
        """Return the locks that pass the test, too. The others count as if they did not exist."""
        return self._changed(restrictions=(*self.restrictions, test))

    def matches(self, lock: ActiveLock) -> bool:
        """Return whether the lock is one of these, apart from filters and the search.

        Raises:
            FieldError: A lookup is not supported.
        """
        return all(test(lock) for test in self.restrictions)

    # What Django's list, its filters and its search use

    def where(self, test: LockTest) -> LockQuerySet:
        """Return the locks that pass the test of a filter, too."""
        return self._changed(conditions=(*self.conditions, test))

    def using(self, alias: str) -> LockQuerySet:
        """Return the locks of one cache alias."""
        every = self.aliases
        return self._changed(aliases=lambda: [each for each in every() if each.name == alias])

    def search(self, text: str) -> LockQuerySet:
        """Return the locks with the text in their names. `*` is any text, `?` any character."""
        text = text.strip()
        if not text:
            return self
        has_wildcards = "*" in text or "?" in text
        return self._changed(pattern=text if has_wildcards else f"*{text}*")

    def order_by(self, *columns: str) -> LockQuerySet:
        """Return the locks in another order. Unknown columns are left out."""
        known = tuple(each for each in columns if each.removeprefix("-") in SORT_KEYS)
        return self._changed(ordering=known) if known != self.ordering else self

    def distinct(self) -> LockQuerySet:
        """Return the same locks: none is there twice."""
        return self

    @property
    def is_filtered(self) -> bool:
        """Whether the rows are chosen one by one from the locks that were read."""
        is_sorted = self.ordering not in ((), BY_EXPIRY)
        return bool(self.restrictions or self.conditions or is_sorted)

    @property
    def is_partial(self) -> bool:
        """Whether more locks match the search than the filters see, or than the pages show."""
        return (len(self.read) if self.is_filtered else self.count()) < self.held

    def count(self) -> int:
        """Return how many locks there are to page through."""
        if self._rows is None:
            self._load(0, self.page_size)
        return self._total

    @property
    def matching(self) -> int:
        """How many locks match the search and the filters, as far as locks were read."""
        total = self.count()
        return total if self.is_filtered else self.held

    def __len__(self) -> int:
        return len(self[0 : self.count()])

    def __iter__(self) -> Iterator[ActiveLock]:
        return iter(self[0 : self.count()])

    def __getitem__(self, wanted: slice) -> list[ActiveLock]:
        start, stop = wanted.start or 0, min(wanted.stop, self.count())
        rows = self._rows or []
        if not (self._start <= start and stop <= self._start + len(rows)):
            rows = self._load(start, stop)
        return rows[start - self._start : max(stop - self._start, 0)]

    # Reading

    def _load(self, start: int, stop: int) -> list[ActiveLock]:
        """Read the rows from `start` to `stop`, or all if they are filtered.

        Raises the error of redis-py, or `ImproperlyConfigured`, if no cache alias answers.
        """
        if self.is_filtered:
            found = self._read(0, self.list_max)
            fitting = [row for row in found if all(test(row) for test in self.conditions)]
            self._rows = self._sorted(fitting)
            self._total = len(self._rows)
            return self._rows
        if not self.ordering and self._load_troubles_first():
            return self._rows or []
        several = sum(map(attrgetter("is_used"), self.aliases())) > 1
        bound = self.list_max if several else self.page_depth
        rows = self._read(0 if several else start, min(stop, bound))
        self._total = min(self.held, bound)
        self._start = start
        self._rows = self.read = sorted(rows, key=_expiry)[start:stop] if several else rows
        return self._rows

    def _load_troubles_first(self) -> bool:
        """Read all locks and sort them, and return whether there are few enough for that."""
        rows = self._read(0, self.page_size)
        if len(rows) < self.held <= self.list_max:
            rows = self._read(0, self.list_max)
        if len(rows) < self.held or self.held > self.list_max:
            return False
        self._start, self._total = 0, len(rows)
        self._rows = sorted(rows, key=_trouble)
        return True

    def _sorted(self, rows: list[ActiveLock]) -> list[ActiveLock]:
        rows.sort(key=_expiry if self.ordering else _trouble)
        for column in reversed(self.ordering):
            key = SORT_KEYS[column.removeprefix("-")]
            known = [row for row in rows if key(row) is not None]
            unknown = [row for row in rows if key(row) is None]
            known.sort(key=key, reverse=column.startswith("-"))
            rows = known + unknown
        return rows

    def _read(self, start: int, stop: int) -> list[ActiveLock]:
        rows: list[ActiveLock] = []
        self.held, self.unreachable = 0, []
        aliases = [*filter(attrgetter("is_used"), self.aliases())]
        for alias in aliases:
            try:
                if alias.error:
                    raise alias.error
                page = alias.manager.page(self.pattern, start=min(start, stop), stop=stop)
            except (RedisError, ImproperlyConfigured) as error:
                self.unreachable.append((alias.name, error))
            else:
                rows += map(ActiveLock.of, page.infos, repeat(alias.name))
                self.held += page.total
        if self.unreachable and len(self.unreachable) == len(aliases):
            raise self.unreachable[0][1]
        self.read = without_shares([*filter(self.matches, rows)] if self.restrictions else rows)
        self.held -= len(rows) - len(self.read)
        return self.read


def without_shares(rows: Sequence[ActiveLock]) -> list[ActiveLock]:
    """Return one row for each quorum lock, with the rows of its other servers as its shares."""
    found: dict[tuple[str, str] | int, ActiveLock] = {}
    for row in rows:
        # A holder has the same lock token on all servers of a quorum lock.
        holding = row.primary if row.info.kind == "quorum" else None
        key = (row.name, holding.token) if holding else id(row)
        first = found.setdefault(key, row)
        if first is not row:
            first.shares += (row,)
    return list(found.values())


def _condition(args: tuple[Any, ...], lookups: dict[str, Any]) -> Q:
    # An iterator can be read only once, but there are many locks to compare.
    values = {
        name: tuple(value) if name.endswith("__in") else value for name, value in lookups.items()
    }
    return Q(*(arg for arg in args if arg), **values)


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
