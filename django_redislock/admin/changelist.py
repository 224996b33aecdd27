"""The list of locks: additions to Django's own list."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator

from ..models import ActiveLock
from .addresses import page_address
from .queryset import LockQuerySet
from .wording import alias_away_text, part_text

if TYPE_CHECKING:
    BasePaginator = Paginator[Any]
else:
    BasePaginator = Paginator


class LockPaginator(BasePaginator):
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
        names = map(attrgetter("parameter_name"), self.list_filter)
        return {name: found[name] for name in names if name in found}

    @property
    def unreachable_notes(self) -> list[str]:
        return [alias_away_text(*each) for each in self.queryset.unreachable]

    @property
    def notes(self) -> list[str]:
        """Sentences that say which locks are missing in the list, and why."""
        part = [part_text(self.queryset)] if self.queryset.is_partial else []
        return self.unreachable_notes + part

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

    @property
    def state_choices(self) -> list[Any]:
        """The choices of the filter of states, except for states that no lock is in."""
        return [
            choice
            for spec in self.filter_specs
            if spec.parameter_name == "state"
            for choice in spec.choices(self)
            if choice["selected"] or choice.get("count") != 0
        ]

    def url_for_result(self, result: Any) -> str:
        site = self.model_admin.admin_site.name
        return page_address("change", site, result.name, using=result.elsewhere)


def permission_test(method: Callable[..., bool], request: Any) -> Callable[[ActiveLock], bool]:
    """Return the test of a permission method of the admin for one lock.

    If a subclass has written the method without the argument `obj`, it decides for all locks.
    """
    try:
        inspect.signature(method).bind(request, None)
    except TypeError:
        return lambda lock: method(request)
    return lambda lock: method(request, lock)
