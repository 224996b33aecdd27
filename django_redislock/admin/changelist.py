"""The list of locks: its filters, and additions to Django's own list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ImproperlyConfigured
from django.core.paginator import EmptyPage, Paginator
from django.http import HttpRequest
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from ..lock_state import STATES, process_of
from ..manager import KINDS
from ..models import ActiveLock
from ..snapshots import Holding
from ..text import printable
from . import columns
from .addresses import page_address
from .queryset import LockQuerySet
from .reading import read_locks
from .themes import theme

STATES_TEMPLATE = "admin/django_redislock/activelock/states.html"

MAX_CHOICES = 30  # hosts or tasks that a filter offers


class LockFilter(SimpleListFilter):
    """A filter by a value of each lock, such as its kind."""

    known: Sequence[tuple[str, Any]] = ()
    value_of: Callable[[ActiveLock], str]

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, Any]]:
        return self.known

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return None if self.value() is None else queryset.where(self.matches)

    def matches(self, row: ActiveLock) -> bool:
        return self.value_of(row) == self.value()


class HolderFilter(LockFilter):
    """A filter by a value of each holder. Its choices come from the locks that were read."""

    known = (("", ""),)  # until the locks are read
    text_of: Callable[[Holding], str | None]

    def choices(self, changelist: Any) -> Iterator[Any]:
        counts: Counter[str] = Counter()
        for row in changelist.root_queryset.rows:
            counts.update(self.values_of(row))
        found = [value for value, _count in counts.most_common(MAX_CHOICES)]
        if chosen := self.value():
            found.append(chosen)
        self.lookup_choices = [
            (value, Truncator(value).chars(60) or _("(none)")) for value in sorted({*found})
        ]
        return super().choices(changelist)

    def matches(self, row: ActiveLock) -> bool:
        return self.value() in self.values_of(row)

    def values_of(self, row: ActiveLock) -> set[str]:
        values = (self.text_of(each) for each in row.info.holders)
        return {printable(value) if value else "" for value in values}


class Kind(LockFilter):
    title = pgettext_lazy("of a lock", "kind")
    parameter_name = "kind"
    known = tuple(zip(KINDS, KINDS, strict=True))
    value_of = attrgetter("info.kind")


class State(LockFilter):
    title = pgettext_lazy("of a lock", "state")
    parameter_name = "state"
    # Jazzmin makes a select box of each filter.
    template = property(
        lambda self: "admin/filter.html" if theme() == "jazzmin" else STATES_TEMPLATE
    )
    known = tuple((state.code, state.label) for state in STATES.values())
    value_of = attrgetter("state.code")

    def choices(self, changelist: Any) -> list[Any]:  # type: ignore[override]
        """Return the choices that a user needs, with the number of locks in each state if all
        locks were read. Only the locks count that the other filters let through."""
        is_counted = changelist.reading.is_complete
        others = [
            each
            for each in changelist.filter_specs
            if isinstance(each, LockFilter) and each is not self and each.value() is not None
        ]
        counts = Counter(
            row.state.code
            for row in changelist.root_queryset.rows
            if all(each.matches(row) for each in others)
        )
        choices: list[Any] = []
        for code, choice in zip((None, *STATES), super().choices(changelist), strict=True):
            if code and is_counted:
                choice["display"] = f"{choice['display']} ({counts[code]})"
            if choice["selected"] or not code or not is_counted or counts[code]:
                choices.append(choice)
        return choices


class Task(HolderFilter):
    title = pgettext_lazy("of a lock", "task")
    parameter_name = "task"
    text_of = attrgetter("holder.task_name")


class Host(HolderFilter):
    title = pgettext_lazy("of a lock", "host")
    parameter_name = "host"
    text_of = attrgetter("holder.host")


class Process(HolderFilter):
    title = pgettext_lazy("of a lock", "process")
    parameter_name = "process"
    text_of = staticmethod(process_of)


FILTERS = (State, Kind, Task, Host, Process)


class LockPaginator(Paginator):  # type: ignore[type-arg]
    """A paginator that shows the nearest page if a page does not exist.

    The list becomes shorter by itself, so its last page can disappear between two requests.
    """

    def validate_number(self, number: Any) -> int:
        try:
            return super().validate_number(number)
        except EmptyPage:
            return min(max(int(number), 1), self.num_pages)


def checked(model_admin: Any, queryset: Any) -> LockQuerySet:
    """Return what `get_queryset()` of the admin has returned, if it is a `LockQuerySet`."""
    if isinstance(queryset, LockQuerySet):
        return queryset
    raise ImproperlyConfigured(
        f"{type(model_admin).__name__}.get_queryset() must return super().get_queryset(request),"
        " narrowed by where()."
    )


class LockChangeList(ChangeList):
    """Django's list of the locks of one cache alias, with what was read for it."""

    model_admin: Any
    root_queryset: Any

    def get_filters_params(self, params: Any = None) -> Any:
        found = super().get_filters_params(params)
        found.pop("using", None)  # it chooses which locks are read, so it is no filter
        return found

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Any:
        checked(self.model_admin, self.root_queryset)
        return super().get_queryset(request, exclude_parameters)

    def get_results(self, request: HttpRequest) -> None:
        self.reading = read_locks(request, self.model_admin.list_max)
        # The number of all locks that match would include hidden ones.
        self.is_narrowed = bool(self.root_queryset.tests)
        super().get_results(request)
        for row in self.result_list:
            row.cells = columns.cells(row)

    def url_for_result(self, result: Any) -> str:
        site = self.model_admin.admin_site.name
        return page_address("change", site, result.name, using=self.params.get("using", ""))
