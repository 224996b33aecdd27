"""Django's own list of objects, filled from Redis instead of the database."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from django.contrib import messages
from django.contrib.admin.views.main import ChangeList
from django.http import HttpRequest
from django.urls import reverse

from ..info import LockInfo
from ..manager import locks
from ..models import ActiveLock
from ..names import check_name
from ..text import printable
from .addresses import quote_name, url_name


class LockRows(list[ActiveLock]):
    """What the admin's list asks of a query set, over rows that are there."""

    def filter(self, *, pk__in: Iterable[str]) -> LockRows:
        known = {row.name: row for row in self}
        # What has moved beyond the end of the list since it was drawn is asked for by name.
        rows = (known.get(name) or find_row(name) for name in dict.fromkeys(pk__in))
        return LockRows(row for row in rows if row)

    def _clone(self) -> LockRows:
        return self


class LockChangeList(ChangeList):
    """Django's own list, filled from Redis."""

    has_more = False
    total: int | None = None

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().__init__(request, *args, **kwargs)
        self.title = str(self.opts.verbose_name_plural).capitalize()

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        # Django asks again for the rows when an action is posted.
        if not hasattr(self, "queryset"):
            self.queryset = self._load(request)
        return self.queryset

    def url_for_result(self, result: Any) -> str:
        return reverse(
            url_name("change"),
            args=(quote_name(result.name),),
            current_app=self.model_admin.admin_site.name,
        )

    def _load(self, request: HttpRequest) -> LockRows:
        most = self.model_admin.list_max  # type: ignore[attr-defined]
        try:
            found = list(islice(locks.active(as_pattern(self.query)), most + 1))
        except ValueError as error:
            messages.error(request, printable(error))
            return LockRows()
        self.has_more = len(found) > most
        self.total = locks.count() if self.has_more and not self.query.strip() else None
        return LockRows(ActiveLock.of(info) for info in sorted(found[:most], key=oldest_first))


def as_pattern(query: str) -> str | None:
    """Return what was searched for as a pattern: any part of a name, unless it has wildcards."""
    query = query.strip()
    if not query or "*" in query or "?" in query:
        return query or None
    return f"*{query}*"


def find_row(name: str) -> ActiveLock | None:
    try:
        info = locks.get(check_name(name))
    except ValueError:  # a URL or a form can ask for what is no name at all
        return None
    return ActiveLock.of(info) if info else None


def oldest_first(info: LockInfo) -> tuple[bool, float, str]:
    since = info.acquired_at
    return since is None, since.timestamp() if since else 0.0, info.name
