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
from ..snapshots import Holder
from ..text import age, printable
from .aliases import aliases_of, used_aliases

if TYPE_CHECKING:
    from .changelist import LockChangeList

MOST_CHOICES = 30


class LockFilter(SimpleListFilter):
    """A filter by what a lock says of itself: `matches` decides for each lock."""

    known: Sequence[tuple[str, Any]] = ()

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, Any]]:
        return self.known

    def is_set(self) -> bool:
        return self.value() is not None

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset.where(self.matches) if self.is_set() else None

    def matches(self, row: ActiveLock) -> bool:
        raise NotImplementedError


class Found(LockFilter):
    """A filter by what the locks that were looked at say of their holders."""

    def has_output(self) -> bool:
        return True

    def choices(self, changelist: LockChangeList) -> Iterator[Any]:  # type: ignore[override]
        self.lookup_choices = [(value, _shown(value)) for value in self._found(changelist)]
        return super().choices(changelist)

    def matches(self, row: ActiveLock) -> bool:
        return self.value() in set(self._told(row))

    def _found(self, changelist: LockChangeList) -> list[str]:
        told = Counter(value for row in changelist.queryset.read for value in set(self._told(row)))
        values = {value for value, _times in told.most_common(MOST_CHOICES)}
        value = self.value()
        return sorted(values if value is None else values | {value})

    def _told(self, row: ActiveLock) -> Iterator[str]:
        return (printable(self.of(holding.holder)) for holding in row.info.holders)

    def of(self, holder: Holder) -> str:
        raise NotImplementedError


def _shown(value: str) -> Any:
    return Truncator(printable(value)).chars(60) if value else _("(none)")


class Kind(LockFilter):
    title = pgettext_lazy("of a lock", "kind")
    parameter_name = "kind"
    known = tuple((kind, kind) for kind in KINDS)

    def matches(self, row: ActiveLock) -> bool:
        return row.info.kind == self.value()


class State(LockFilter):
    title = pgettext_lazy("of a lock", "state")
    parameter_name = "state"
    known = tuple((state.code, state.label) for state in STATES.values())

    def choices(self, changelist: LockChangeList) -> Iterator[Any]:  # type: ignore[override]
        """Yield the choices, with the number of locks in each state if all locks were read."""
        choices: list[Any] = list(super().choices(changelist))
        every, *states = choices
        read = changelist.queryset.read
        yield every
        knows_all = len(read) == changelist.queryset.held
        counts = Counter(row.state.code for row in read)
        for code, choice in zip(STATES, states, strict=True):
            if knows_all:
                choice["count"] = counts[code]
                choice["display"] = f"{choice['display']} ({counts[code]})"
            yield choice

    def matches(self, row: ActiveLock) -> bool:
        return row.state.code == self.value()


class Waiters(LockFilter):
    title = pgettext_lazy("of a lock", "waiters")
    parameter_name = "waiters"
    known = (("yes", _("Has waiters")), ("no", _("No waiters")))

    def matches(self, row: ActiveLock) -> bool:
        return ("yes" if row.info.waiters else "no") == self.value()


class Task(Found):
    title = pgettext_lazy("of a lock", "task")
    parameter_name = "task"

    def of(self, holder: Holder) -> str:
        return holder.task_name or ""


class Host(Found):
    title = pgettext_lazy("of a lock", "host")
    parameter_name = "host"

    def of(self, holder: Holder) -> str:
        return holder.host


class Age(LockFilter):
    title = pgettext_lazy("of a lock", "age")
    parameter_name = "age"
    known = (
        ("60", _("Older than 1 minute")),
        ("600", _("Older than 10 minutes")),
        ("3600", _("Older than 1 hour")),
        ("86400", _("Older than 1 day")),
    )

    def is_set(self) -> bool:
        return self.value() in dict(self.known)

    def matches(self, row: ActiveLock) -> bool:
        first = row.info.first
        return first is not None and age(first) > float(self.value() or 0)


class Using(SimpleListFilter):
    """Says whom to ask, and so costs no look at any lock."""

    title = _("cache alias")
    parameter_name = "using"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, Any]]:
        used = used_aliases(request)
        asked_for = request.GET.get(self.parameter_name)
        aliases = [each for each in aliases_of(request) if each in used or each.name == asked_for]
        return [(each.name, each.name) for each in aliases] if len(aliases) > 1 else []

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset.using(self.value()) if self.value() in dict(self.lookup_choices) else None


ALL = (State, Kind, Waiters, Age, Task, Host, Using)
