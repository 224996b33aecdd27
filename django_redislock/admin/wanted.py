"""What the list asks of Redis: a page of the locks as they stand, or some that are filtered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import RedisError

from ..manager import LockManager
from ..models import ActiveLock
from .sorting import by_end, in_order

Away = tuple[str, Exception]
"""An alias that could not be asked, and why."""


@dataclass(slots=True)
class LockRows:
    """What Django's list asks of a query set, over some of the rows that there are."""

    rows: list[ActiveLock]

    start: int = 0
    """The place of the first of `rows` among all."""

    total: int = 0
    """How many rows can be paged through."""

    held: int = 0
    """How many locks match the search."""

    matching: int = 0
    """How many match the filters too; where not all were looked at, so many at least."""

    looked_at: Sequence[ActiveLock] = ()
    """The locks among which `rows` were found."""

    away: list[Away] = field(default_factory=list)

    def count(self) -> int:
        return self.total

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[ActiveLock]:
        return iter(self.rows)

    def __getitem__(self, wanted: slice) -> list[ActiveLock]:
        return self.rows[max(wanted.start - self.start, 0) : max(wanted.stop - self.start, 0)]

    def _clone(self) -> LockRows:
        return self

    def filter(self, **lookups: object) -> LockRows:
        """Answer all: an action reads what was selected from the form itself."""
        return self


@dataclass(frozen=True, slots=True)
class Wanted:
    """The locks that a list is of."""

    managers: Sequence[LockManager]

    pattern: str | None

    conditions: Sequence[Callable[[ActiveLock], bool]]

    order: Sequence[tuple[str, bool]]
    """Columns to sort by and whether downwards; none: in the order in which leases end."""

    most: int
    """How many locks of each alias are looked at for a filter or another order."""

    depth: int
    """How far one can page where nothing is filtered."""

    may_view: Callable[[ActiveLock], bool] | None = None
    """Whether the user may see a lock; None if the user may see all. The others count as if they
    did not exist."""

    @property
    def is_sifted(self) -> bool:
        """Whether the rows are picked one by one from the locks that were looked at."""
        return bool(self.conditions or self.order or self.may_view)

    def rows(self, start: int, stop: int) -> LockRows:
        """Ask for the rows from `start` to `stop`; redis-py's errors or
        `ImproperlyConfigured` if no alias answers."""
        if self.is_sifted:
            return self._sifted()
        if len(self.managers) == 1:
            return self._page(start, min(stop, self.depth))
        return self._merged(start, min(stop, self.most))

    def _page(self, start: int, stop: int) -> LockRows:
        rows, held, away = self._ask(min(start, stop), stop)
        return LockRows(rows, start, min(held, self.depth), held, held, rows, away)

    def _merged(self, start: int, stop: int) -> LockRows:
        rows, held, away = self._ask(0, stop)
        page = sorted(rows, key=by_end)[start:stop]
        return LockRows(page, start, min(held, self.most), held, held, page, away)

    def _sifted(self) -> LockRows:
        rows, held, away = self._ask(0, self.most)
        if self.may_view:
            visible = [row for row in rows if self.may_view(row)]
            held -= len(rows) - len(visible)
            rows = visible
        found = [row for row in rows if all(fits(row) for fits in self.conditions)]
        rows_in_order = in_order(found, self.order)
        return LockRows(rows_in_order, 0, len(found), held, len(found), rows, away)

    def _ask(self, start: int, stop: int) -> tuple[list[ActiveLock], int, list[Away]]:
        rows: list[ActiveLock] = []
        away: list[Away] = []
        held = 0
        for manager in self.managers:
            try:
                page = manager.page(self.pattern, start=start, stop=stop)
            except (RedisError, ImproperlyConfigured) as error:
                away.append((manager.alias, error))
            else:
                rows += [ActiveLock.of(info, using=manager.alias) for info in page.infos]
                held += page.total
        if len(away) == len(self.managers):
            raise away[0][1]
        return rows, held, away
