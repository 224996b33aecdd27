"""The list of locks: additions to Django's own list."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.utils import label_for_field
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ImproperlyConfigured
from django.core.paginator import Paginator
from django.http import HttpRequest

from . import columns
from .addresses import page_address
from .queryset import LockQuerySet
from .reading import aliases_of, read_locks


class LockPaginator(Paginator):  # type: ignore[type-arg]
    """A paginator that shows the nearest page if a page does not exist.

    The list becomes shorter by itself, so its last page can disappear between two requests.
    """

    def validate_number(self, number: Any) -> int:
        return min(max(int(number), 1), self.num_pages)


class LockChangeList(ChangeList):
    """Django's list with what was read for it, and links to a lock's cache alias."""

    model_admin: Any
    root_queryset: Any
    filter_specs: list[Any]

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Any:
        if not isinstance(self.root_queryset, LockQuerySet):
            raise ImproperlyConfigured(
                f"{type(self.model_admin).__name__}.get_queryset() must return"
                " super().get_queryset(request), narrowed by filter(), exclude() or none()."
            )
        return super().get_queryset(request, exclude_parameters)

    def get_results(self, request: HttpRequest) -> None:
        self.reading = read_locks(request, self.model_admin.list_max)
        self.is_complete = len(self.reading.rows) == self.reading.total
        self.column_choices = [
            (each.__name__, label_for_field(each, self.model), each in self.list_display)
            for each in columns.CHOICES
            if each is not columns.CHOICES[-1] or len(aliases_of(request)) > 1
        ]
        super().get_results(request)
        for row in self.result_list:
            row.cells = columns.cells(row)

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
