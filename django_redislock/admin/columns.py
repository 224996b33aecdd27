"""The columns of the list: their content, and which of them a user has chosen."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from ..lock_state import HELD, LATE, STALE
from ..models import ActiveLock
from ..text import age as age_of
from ..text import holder_text, printable, short_duration, task_text
from .aliases import used_aliases

PARAMETER = "columns"
SESSION_KEY = "redislock_columns"

LONG_NAME = 150
"""The number of characters after which the list shows only the first lines of a name."""

SHORT_ID = 8
"""The number of characters of a task id that the list shows."""

WORD_ENDS = re.compile(r"(?<=[._])")

Column = Callable[[ActiveLock], Any]


@admin.display(description=_("name"), ordering="name")
def name(row: ActiveLock) -> Any:
    text = printable(row.name)
    if len(text) <= LONG_NAME:
        return format_html("{}", text)  # of what is not safe Django strips the spaces
    return format_html('<span class="redislock-long" title="{}">{}</span>', text, text)


@admin.display(description=pgettext_lazy("of a lock", "kind"), ordering="kind")
def kind(row: ActiveLock) -> str:
    return printable(row.info.kind)


@admin.display(description=pgettext_lazy("of a lock", "state"), ordering="state")
def state(row: ActiveLock) -> str:
    found, holding, renewed = row.state, row.primary, ""
    if holding and found in (HELD, LATE, STALE):
        before, after = gettext("renewed %(time)s ago").split("%(time)s")
        counted = _counted(holding.since_renewal)
        renewed = format_html(
            ' <span class="redislock-renewed">{}{}{}</span>', before, counted, after
        )
    return format_html(
        '<span class="redislock-state is-{}" title="{}">'
        '<span aria-hidden="true">{}</span> {}</span>{}',
        found.code,
        found.meaning,
        found.mark,
        found.label,
        renewed,
    )


@admin.display(description=pgettext_lazy("of a lock", "holder"), ordering="holder")
def holder(row: ActiveLock) -> str | None:
    holding, others = row.primary, len(row.info.holders) - 1
    if holding is None:
        return None
    text = holder_text(holding)
    return f"{text} (+{others})" if others else text


@admin.display(description=pgettext_lazy("of a lock", "task"), ordering="task")
def task(row: ActiveLock) -> str | None:
    holding = row.primary
    if holding is None or not task_text(holding):
        return None
    task_id = printable(holding.holder.task_id or "")
    words = WORD_ENDS.split(printable(holding.holder.task_name or "?"))
    return format_html(
        '{} <span class="redislock-id" title="{}">{}</span>',
        # A narrow column breaks a dotted name between its words.
        format_html_join(SafeString("<wbr>"), "{}", ((word,) for word in words)),
        task_id,
        task_id if len(task_id) <= SHORT_ID else f"{task_id[:SHORT_ID]}…",
    )


@admin.display(description=pgettext_lazy("of a lock", "age"), ordering="age")
def age(row: ActiveLock) -> str | None:
    holding = row.primary
    return _counted(age_of(holding)) if holding else None


def _counted(seconds: float) -> SafeString:
    """Return a duration that the script of the page keeps counting."""
    return format_html('<span data-age="{}">{}</span>', f"{seconds:.3f}", short_duration(seconds))


@admin.display(description=pgettext_lazy("of a lock", "lease"), ordering="lease")
def lease(row: ActiveLock) -> str | None:
    holding = row.primary
    if holding is None:
        return None
    # Numbers as text, so that no locale puts a comma in.
    left = format_html(
        '<span data-left="{}">{}</span>', f"{holding.ttl:.3f}", short_duration(holding.ttl)
    )
    if not holding.timeout:  # in cooldown
        return left
    timeout = short_duration(holding.timeout)
    return format_html(
        '<span class="redislock-lease"><meter min="0" max="{}" low="{}" optimum="{}" value="{}" '
        'aria-label="{}"></meter> {}</span>',
        f"{holding.timeout:.3f}",
        f"{holding.timeout / 2 if holding.renewed else 0:.3f}",
        f"{holding.timeout:.3f}",
        f"{min(max(holding.ttl, 0), holding.timeout):.3f}",
        gettext("Left of a lease of %(lease)s") % {"lease": timeout},
        format_html(gettext("{left} of {lease}"), left=left, lease=timeout),
    )


@admin.display(description=pgettext_lazy("of a lock", "waiters"), ordering="waiters")
def waiters(row: ActiveLock) -> Any:
    count = row.info.waiters
    return format_html("<strong>{}</strong>", count) if count else count


@admin.display(description=_("fencing token"), ordering="fence")
def fencing_token(row: ActiveLock) -> str | None:
    holding = row.primary
    return str(holding.fence_token) if holding else None  # a number would get separators


@admin.display(description=_("cache alias"), ordering="using")
def using(row: ActiveLock) -> str:
    return ", ".join(printable(each.using) for each in (row, *row.shares))


CHOICES: tuple[Column, ...] = (
    state,
    lease,
    waiters,
    age,
    holder,
    task,
    fencing_token,
    kind,
    using,
)
"""The columns that a user can leave out. The name is always the first column, and columns about
problems come before columns about identity."""


AT_FIRST_LEFT_OUT = (kind, fencing_token)


def _chosen(request: HttpRequest) -> dict[Column, bool]:
    """Return the columns that there are, and whether the user has chosen each. Several cache
    aliases are needed for a column of aliases. The result is kept for the request."""
    found: dict[Column, bool] | None = getattr(request, "redislock_columns", None)
    if found is None:
        names = request.session.get(SESSION_KEY)
        found = {}
        for column in CHOICES if len(used_aliases(request)) > 1 else CHOICES[:-1]:
            is_default = column not in AT_FIRST_LEFT_OUT
            found[column] = column.__name__ in names if isinstance(names, list) else is_default
        request.redislock_columns = found  # type: ignore[attr-defined]
    return found


def shown(request: HttpRequest) -> list[Column]:
    """Return the columns that the user of `request` has chosen."""
    return [column for column, is_shown in _chosen(request).items() if is_shown]


def keep(request: HttpRequest, chosen: Sequence[str]) -> None:
    """Keep the choice of columns for as long as the session lasts."""
    names = [column.__name__ for column in _chosen(request) if column.__name__ in chosen]
    request.session[SESSION_KEY] = names


def form(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the data of the form of columns."""
    return [
        {"name": column.__name__, "label": column.short_description, "shown": is_shown}  # type: ignore[attr-defined]
        for column, is_shown in _chosen(request).items()
    ]
