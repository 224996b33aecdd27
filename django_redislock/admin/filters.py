"""The filters of the list. Their choices are fixed, or come from the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from django.contrib.admin import SimpleListFilter
from django.http import HttpRequest
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from ..lock_state import STATES
from ..manager import KINDS
from ..models import ActiveLock
from ..text import age, printable
from .reading import aliases_of

if TYPE_CHECKING:
    from .changelist import LockChangeList

MOST_CHOICES = 30
"""The maximum number of hosts, or of tasks, that a filter offers."""


class LockFilter(SimpleListFilter):
    """A filter for which `matches` decides about each lock."""

    known: Sequence[tuple[str, Any]] = ()

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, Any]]:
        return self.known

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return None if self.value() is None else queryset.where(self.matches)

    def matches(self, row: ActiveLock) -> bool:
        raise NotImplementedError


class HolderFilter(LockFilter):
    """A filter by an attribute of the holders. Its choices come from the locks that were read."""

    known = (("", ""),)  # until the locks are read
    attribute: str

    def choices(self, changelist: LockChangeList) -> Iterator[Any]:  # type: ignore[override]
        counts: Counter[str | None] = Counter()
        for row in changelist.root_queryset.rows:
            counts.update({getattr(each.holder, self.attribute) for each in row.info.holders})
        labels: dict[str, Any] = {}
        if (chosen := self.value()) is not None:
            labels[chosen] = Truncator(printable(chosen)).chars(60)
        for value, _count in counts.most_common(MOST_CHOICES):
            text = printable(value) if value else ""
            labels[text] = Truncator(text).chars(60)
        if "" in labels:
            labels[""] = _("(none)")
        self.lookup_choices = sorted(labels.items())
        return super().choices(changelist)

    def matches(self, row: ActiveLock) -> bool:
        values = (getattr(each.holder, self.attribute) for each in row.info.holders)
        return any(printable(value or "") == self.value() for value in values)


class Kind(LockFilter):
    title = pgettext_lazy("of a lock", "kind")
    parameter_name = "kind"
    known = tuple(zip(KINDS, KINDS, strict=True))

    def matches(self, row: ActiveLock) -> bool:
        return row.info.kind == self.value()


class State(LockFilter):
    title = pgettext_lazy("of a lock", "state")
    parameter_name = "state"
    template = "admin/django_redislock/activelock/states.html"
    known = tuple((state.code, state.label) for state in STATES.values())

    def choices(self, changelist: LockChangeList) -> list[Any]:  # type: ignore[override]
        """Return the choices that a user needs, with the number of locks in each state if all
        locks were read."""
        is_counted = changelist.is_complete
        counts = Counter([row.state.code for row in changelist.root_queryset.rows])
        choices: list[Any] = []
        for code, choice in zip((None, *STATES), super().choices(changelist), strict=True):
            if code and is_counted:
                choice["display"] = f"{choice['display']} ({counts[code]})"
            if choice["selected"] or not code or not is_counted or counts[code]:
                choices.append(choice)
        return choices

    def matches(self, row: ActiveLock) -> bool:
        return row.state.code == self.value()


class Waiters(LockFilter):
    title = pgettext_lazy("of a lock", "waiters")
    parameter_name = "waiters"
    known = (("yes", _("Has waiters")), ("no", _("No waiters")))

    def matches(self, row: ActiveLock) -> bool:
        return ("yes" if row.info.waiters else "no") == self.value()


class Task(HolderFilter):
    title = pgettext_lazy("of a lock", "task")
    parameter_name = "task"
    attribute = "task_name"


class Host(HolderFilter):
    title = pgettext_lazy("of a lock", "host")
    parameter_name = attribute = "host"


class Age(LockFilter):
    title = pgettext_lazy("of a lock", "age")
    parameter_name = "age"
    known = (
        ("60", _("Older than 1 minute")),
        ("600", _("Older than 10 minutes")),
        ("3600", _("Older than 1 hour")),
        ("86400", _("Older than 1 day")),
    )

    def matches(self, row: ActiveLock) -> bool:
        if self.value() not in dict(self.known):
            return True
        first = row.info.first
        return first is not None and age(first) > float(self.value() or 0)


class Using(LockFilter):
    title = _("cache alias")
    parameter_name = "using"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, Any]]:
        aliases = aliases_of(request)
        return [(each.name, each.name) for each in aliases] if len(aliases) > 1 else []

    def matches(self, row: ActiveLock) -> bool:
        return self.value() in row.aliases or self.value() not in dict(self.lookup_choices)


ALL = (State, Kind, Waiters, Age, Task, Host, Using)
