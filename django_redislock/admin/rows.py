"""Django's own list of objects, filled from Redis instead of the database."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any, cast

from django.contrib.admin.views.main import ORDER_VAR, ChangeList
from django.http import HttpRequest
from django.utils.text import capfirst

from ..manager import LockManager, locks
from ..models import ActiveLock
from . import filters
from .addresses import page_address, query_string
from .sorting import KEYS
from .wanted import LockRows, Wanted
from .wording import alias_away_text, part_text

DEFAULT_ORDER = "lease"


class LockChangeList(ChangeList):
    """Django's own list, filled from Redis."""

    wanted: Wanted
    rows: LockRows

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        self.query_string = query_string(request.GET)
        super().__init__(request, *args, **kwargs)
        self.title = str(capfirst(self.opts.verbose_name_plural))

    @property
    def looked_at(self) -> Sequence[ActiveLock]:
        return self.rows.looked_at

    @property
    def is_part(self) -> bool:
        """Whether more locks match the search than were looked at, or than can be paged to."""
        reached = len(self.looked_at) if self.is_sifted else self.rows.total
        return reached < self.rows.held

    @property
    def notes(self) -> list[str]:
        """What is missing in the list, and why."""
        part = [part_text(self.rows, sifted=self.is_sifted)] if self.is_part else []
        return self.away_notes + part

    @property
    def away_notes(self) -> list[str]:
        return [alias_away_text(*each) for each in self.rows.away]

    @property
    def is_sifted(self) -> bool:
        return self.wanted.is_sifted

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        # Django asks again for the rows when an action is posted.
        if not hasattr(self, "rows"):
            self._set_filters(request)
            self.wanted = self._wanted(request)
            self.rows = self.wanted.rows(*self._bounds())
        return self.rows

    def get_results(self, request: HttpRequest) -> None:
        self._stay_within_pages()
        super().get_results(request)
        if not (self.query or self.has_active_filters):
            # So Django does not offer to show all where all are shown.
            self.full_result_count = self.result_count

    def _stay_within_pages(self) -> None:
        # The list grows shorter by itself: who looked at its last page sees what is last now.
        last = max(ceil(self.rows.total / self.list_per_page), 1)
        if not 1 <= self.page_num <= last:
            self.page_num = min(max(self.page_num, 1), last)
            self.queryset = self.rows = self.wanted.rows(*self._bounds())

    def _set_filters(self, request: HttpRequest) -> None:
        params, classes = self.get_filters_params(), cast(Sequence[Any], self.list_filter)
        self.filters: list[filters.LockFilter] = [
            each(request, params, self.model, self.model_admin) for each in classes
        ]
        self.filter_specs = [*(each for each in self.filters if each.has_output())]
        self.has_filters = bool(self.filter_specs)
        self.has_active_filters = any(each.is_set() for each in self.filters)
        self.clear_all_filters_qs = self.get_query_string(remove=self.get_filters_params())

    def _wanted(self, request: HttpRequest) -> Wanted:
        return Wanted(
            managers=self._managers(),
            pattern=as_pattern(self.query),
            conditions=filters.conditions(self.filters),
            order=self._order(),
            most=self.model_admin.list_max,  # type: ignore[attr-defined]
            depth=self.model_admin.page_depth,  # type: ignore[attr-defined]
            may_view=self.model_admin.view_test(request),  # type: ignore[attr-defined]
        )

    def _managers(self) -> Sequence[LockManager]:
        for each in self.filters:
            if isinstance(each, filters.Using) and each.is_set():
                return [locks.using(each.value())]
        return locks.everywhere()

    def _order(self) -> list[tuple[str, bool]]:
        if ORDER_VAR not in self.params:
            return []
        order = [
            (str(self.get_ordering_field(self.list_display[place])), direction == "desc")
            for place, direction in self.get_ordering_field_columns().items()
            if self._is_sortable(place)
        ]
        return [] if order == [(DEFAULT_ORDER, False)] else order

    def _is_sortable(self, place: int) -> bool:
        within = 0 <= place < len(self.list_display)
        return within and self.get_ordering_field(self.list_display[place]) in KEYS

    def _get_default_ordering(self) -> list[str]:
        return [DEFAULT_ORDER]

    def _bounds(self) -> tuple[int, int]:
        page = min(max(self.page_num, 1), self.wanted.depth)  # it may be any number at all
        start, stop = (page - 1) * self.list_per_page, page * self.list_per_page
        return (0, max(stop, self.list_max_show_all)) if self.show_all else (start, stop)

    def url_for_result(self, result: Any) -> str:
        using = "" if result.using == locks.alias else result.using
        return page_address("change", self.model_admin.admin_site.name, result.name, using=using)


def as_pattern(query: str) -> str | None:
    """Return what was searched for as a pattern: any part of a name, unless it has wildcards."""
    query = query.strip()
    if not query or "*" in query or "?" in query:
        return query or None
    return f"*{query}*"
