"""The locks as Django's admin asks for them: a query set whose rows come from Redis."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from django.core.exceptions import FieldError, ImproperlyConfigured
from django.db.models import Q
from redis.exceptions import RedisError

from ..models import ActiveLock
from .aliases import Alias
from .columns import SORT_KEYS
from .wording import alias_away_text, part_text

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

ORDERS = {*SORT_KEYS, *map("-{}".format, SORT_KEYS)}

BY_EXPIRY = ("lease",)
"""The order in which a server returns locks, so that one page can be read on its own."""

expiry, urgency = attrgetter("expires_at", "name"), attrgetter("urgency")


class LockQuerySet:
    """The locks that a user may see: the part of Django's `QuerySet` that fits rows from Redis.

    A lookup can use `name` (or `pk`) and `using`, the cache alias. It is evaluated in Python.
    A query set is lazy, and reads the locks at most once.
    """

    model = ActiveLock

    totally_ordered = True
    """Names break ties, so Django's list (from 6.1 on) needs no further column."""

    query = SimpleNamespace(select_related=True, order_by=())
    """For Django's list: no relation needs to be joined, and no order is given."""

    restrictions: tuple[LockTest, ...] = ()
    """The tests of the locks that exist for the user."""

    conditions: tuple[LockTest, ...] = ()
    """The tests of the filters."""

    ordering: tuple[str, ...] = ()
    pattern: str | None = None
    alias: str | None = None

    # After the locks were read

    held: int
    """How many locks match the search."""

    read: list[ActiveLock]
    """The locks that were read to find the rows."""

    is_filtered: bool
    """Whether the rows are chosen one by one from the locks that were read."""

    unreachable: list[str]
    """Sentences that say which cache aliases could not be read, and why."""

    notes: list[str]
    """These, and a sentence on locks that are missing because there are too many."""

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
        self._is_read = False

    def _changed(self, **changes: Any) -> LockQuerySet:
        clone = copy(self)
        vars(clone).update(changes, _is_read=False)
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
        return self._changed(alias=alias)

    def search(self, text: str) -> LockQuerySet:
        """Return the locks with the text in their names. `*` is any text, `?` any character."""
        has_wildcards = "*" in text or "?" in text
        return self._changed(pattern=text if has_wildcards else f"*{text}*")

    def order_by(self, *columns: str) -> LockQuerySet:
        """Return the locks in another order. Unknown columns are left out."""
        known = tuple(filter(ORDERS.__contains__, columns))
        return self._changed(ordering=known) if known != self.ordering else self

    def distinct(self) -> LockQuerySet:
        """Return the same locks: none is there twice."""
        return self

    def count(self) -> int:
        """Return how many locks there are to page through."""
        if not self._is_read:
            self._load(0, self.page_size)
        return self._total

    def __len__(self) -> int:
        return self.count()

    def __iter__(self) -> Iterator[ActiveLock]:
        return iter(self[0 : self.count()])

    def __getitem__(self, wanted: slice) -> list[ActiveLock]:
        if not self._is_read:
            self.count()
        start, stop = wanted.start or 0, min(wanted.stop, self._total)
        if not self._start <= start <= stop <= self._start + len(self._rows):
            self._load(start, stop)
        return self._rows[start - self._start : stop - self._start]

    def _clone(self) -> list[ActiveLock]:
        """Return the rows. Django's list calls this if they fit on one page."""
        return self[0 : self._total]

    @property
    def matching(self) -> int:
        """How many locks match the search and the filters, as far as locks were read."""
        if not self._is_read:
            self.count()
        return self._total if self.is_filtered else self.held

    # Reading

    def _load(self, start: int, stop: int) -> None:
        """Read the rows from `start` to `stop`, or all if they are filtered, or if they are few.

        Raises the error of redis-py, or `ImproperlyConfigured`, if no cache alias answers.
        """
        aliases = self.aliases()
        if self.alias:
            aliases = [each for each in aliases if each.name == self.alias]
        is_sorted = self.ordering not in ((), BY_EXPIRY)
        self.is_filtered = bool(self.restrictions or self.conditions or is_sorted)
        several, bound = len(aliases) > 1, self.list_max
        if self.is_filtered:
            rows = self._read(aliases, 0, bound)
        elif not self.ordering:
            rows = self._read(aliases, 0, self.page_size)
            if len(rows) < self.held <= bound:
                rows = self._read(aliases, 0, bound)
        if self.is_filtered or (not self.ordering and len(rows) == self.held <= bound):
            for test in self.conditions:
                rows = [*filter(test, rows)]
            rows = self._ordered(rows) if self.ordering else sorted(rows, key=urgency)
            self._start, self._total, self._rows = 0, len(rows), rows
            looked = len(self.read)
        else:
            bound = bound if several else self.page_depth
            rows = self._read(aliases, 0 if several else start, min(stop, bound))
            if several:
                rows = self.read = sorted(rows, key=expiry)[start:stop]
            self._start, self._total, self._rows = start, min(self.held, bound), rows
            looked = self._total
        self._is_read = True
        self.notes = self.unreachable
        if looked < self.held:
            self.notes = [*self.unreachable, part_text(self)]

    def _ordered(self, rows: list[ActiveLock]) -> list[ActiveLock]:
        rows = sorted(rows, key=expiry)
        for column in reversed(self.ordering):
            key = SORT_KEYS[column.removeprefix("-")]
            known = [row for row in rows if key(row) is not None]
            unknown = [row for row in rows if key(row) is None]
            known.sort(key=key, reverse=column.startswith("-"))
            rows = known + unknown
        return rows

    def _read(self, aliases: Sequence[Alias], start: int, stop: int) -> list[ActiveLock]:
        rows: list[ActiveLock] = []
        errors: list[Exception] = []
        self.held = 0
        self.read = rows
        self.unreachable = []
        for alias in aliases:
            try:
                if alias.error:
                    raise alias.error
                page = alias.manager.page(self.pattern, start=min(start, stop), stop=stop)
            except (RedisError, ImproperlyConfigured) as error:
                errors.append(error)
                self.unreachable.append(alias_away_text(alias.name, error))
            else:
                rows += [ActiveLock.of(info.name, alias.name, info) for info in page.infos]
                self.held += page.total
        if errors and len(errors) == len(aliases):
            raise errors[0]
        if self.restrictions:
            self.read = [*filter(self.matches, rows)]
        if len(aliases) > 1:
            self.read = without_shares(self.read)
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
