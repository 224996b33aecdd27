"""The columns of the list: what stands in them, and which of them a user has chosen."""

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
from ..snapshots import Holding
from ..text import age as age_of
from ..text import holder_text, printable, short_duration, task_text
from .aliases import used_aliases
from .wording import fence_text

PARAMETER = "columns"
SESSION_KEY = "redislock_columns"

LONG_NAME = 150
"""Characters after which the list shows only the first lines of a name."""

SHORT_ID = 8
"""Characters of a task's id that the list shows."""

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
    found = row.state
    return format_html(
        '<span class="redislock-state is-{}" title="{}">'
        '<span aria-hidden="true">{}</span> {}</span>{}',
        found.code,
        found.meaning,
        found.mark,
        found.label,
        _renewed(row),
    )


def _renewed(row: ActiveLock) -> str:
    holding = row.primary
    if holding is None or row.state not in (HELD, LATE, STALE):
        return ""
    before, after = gettext("renewed %(time)s ago").split("%(time)s")
    return format_html(
        ' <span class="redislock-renewed">{}{}{}</span>',
        before,
        _counted(holding.since_renewal),
        after,
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
    return format_html(
        '{} <span class="redislock-id" title="{}">{}</span>',
        _breakable(printable(holding.holder.task_name or "?")),
        task_id,
        task_id if len(task_id) <= SHORT_ID else f"{task_id[:SHORT_ID]}…",
    )


def _breakable(text: str) -> SafeString:
    """Return a dotted name that a narrow column breaks between its words."""
    return format_html_join(SafeString("<wbr>"), "{}", ((w,) for w in WORD_ENDS.split(text)))


@admin.display(description=pgettext_lazy("of a lock", "age"), ordering="age")
def age(row: ActiveLock) -> str | None:
    holding = row.primary
    return _counted(age_of(holding)) if holding else None


def _counted(seconds: float) -> SafeString:
    """Return what the page's script counts on from."""
    return format_html('<span data-age="{}">{}</span>', f"{seconds:.3f}", short_duration(seconds))


@admin.display(description=pgettext_lazy("of a lock", "lease"), ordering="lease")
def lease(row: ActiveLock) -> str | None:
    holding = row.primary
    return _lease(holding) if holding else None


def _lease(holding: Holding) -> SafeString:
    # Numbers as text, so that no locale puts a comma in.
    left = format_html(
        '<span data-left="{}">{}</span>', f"{holding.ttl:.3f}", short_duration(holding.ttl)
    )
    if not holding.timeout:  # it only cools down
        return left
    return format_html(
        '<span class="redislock-lease"><meter min="0" max="{}" low="{}" optimum="{}" value="{}" '
        'aria-label="{}"></meter> {}</span>',
        f"{holding.timeout:.3f}",
        f"{holding.timeout / 2 if holding.renewed else 0:.3f}",
        f"{holding.timeout:.3f}",
        f"{min(max(holding.ttl, 0), holding.timeout):.3f}",
        gettext("Left of a lease of %(lease)s") % {"lease": short_duration(holding.timeout)},
        format_html(
            gettext("{left} of {lease}"), left=left, lease=short_duration(holding.timeout)
        ),
    )


@admin.display(description=pgettext_lazy("of a lock", "waiters"), ordering="waiters")
def waiters(row: ActiveLock) -> Any:
    count = row.info.waiters
    return format_html("<strong>{}</strong>", count) if count else count


@admin.display(description=_("fencing token"), ordering="fence")
def fencing_token(row: ActiveLock) -> str | None:
    holding = row.primary
    return fence_text(holding) if holding else None


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


def available(request: HttpRequest) -> list[Column]:
    several = len(used_aliases(request)) > 1
    return [column for column in CHOICES if several or column is not using]


def shown(request: HttpRequest) -> list[Column]:
    """Return the columns that the user of `request` has chosen."""
    chosen = request.session.get(SESSION_KEY)
    if not isinstance(chosen, list):
        return [column for column in available(request) if column not in AT_FIRST_LEFT_OUT]
    return [column for column in available(request) if column.__name__ in chosen]


def keep(request: HttpRequest, chosen: Sequence[str]) -> None:
    """Keep what was chosen for as long as the session lasts."""
    names = [column.__name__ for column in available(request) if column.__name__ in chosen]
    request.session[SESSION_KEY] = names


def form(request: HttpRequest) -> list[dict[str, Any]]:
    """Return what the form of columns shows."""
    now = shown(request)
    return [
        {
            "name": column.__name__,
            "label": getattr(column, "short_description", column.__name__),
            "shown": column in now,
        }
        for column in available(request)
    ]
