"""The list of locks: additions to Django's own list."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.http import HttpRequest

from .addresses import page_address
from .columns import cells
from .queryset import LockQuerySet


class LockPaginator(Paginator):  # type: ignore[type-arg]
    """A paginator that shows the nearest page if a page does not exist.

    The list becomes shorter by itself, so its last page can disappear between two requests.
    """

    def validate_number(self, number: Any) -> int:
        return min(max(int(number), 1), self.num_pages)


class LockChangeList(ChangeList):
    """Django's list with notes about locks that are missing, and links to a lock's cache alias."""

    queryset: LockQuerySet
    filter_specs: list[Any]

    def get_filters_params(self, params: Any = None) -> dict[str, Any]:
        # Without this, an address could have a lookup with a regular expression evaluated.
        found = super().get_filters_params(params)
        known = map(attrgetter("parameter_name"), self.list_filter)
        for name in found.keys() - set(known):
            del found[name]
        return found

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.notes = self.queryset.notes
        self.filters = {}
        for spec in self.filter_specs:
            self.filters[spec.parameter_name] = spec
        # The page has the states above the list.
        self.states = self.filters["state"].choices(self) if "state" in self.filters else ()
        for row in self.result_list:
            row.cells = cells(row)

    @property
    def active_filters(self) -> str:
        """The choices of the filters that are set, without the filter of states."""
        return ", ".join(
            str(choice["display"])
            for spec in self.filter_specs
            if spec.value() is not None and spec.parameter_name != "state"
            for choice in spec.choices(self)
            if choice["selected"]
        )

    def url_for_result(self, result: Any) -> str:
        site = self.model_admin.admin_site.name
        return page_address("change", site, result.name, using=result.elsewhere)
