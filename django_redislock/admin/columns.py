"""The columns of the list: their cells, their order, and which of them a user has chosen."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.utils.functional import Promise
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext, pgettext_lazy
from django.utils.translation import gettext as djangos  # its own texts: not for our catalogs
from django.utils.translation import gettext_lazy as _

from ..lock_state import HELD, LATE, SEVERITY, STALE
from ..models import ActiveLock
from ..snapshots import Holder, Holding
from ..text import age, holder_text, printable, short_duration, task_text
from .shown_holders import shown_holders

Column = Callable[[ActiveLock], Any]

PARAMETER = "columns"
SESSION_KEY = "redislock_columns"

LONG_NAME = 150
"""The number of characters after which the list shows only the first lines of a name."""

SHORT_ID = 8
"""The number of characters of a task id that the list shows."""

WORD_ENDS = re.compile(r"(?<=[._])")


def cells(row: ActiveLock) -> SimpleNamespace:
    """Return the contents of all columns, and a checkbox that names the holders on the page.

    The script of the page counts the numbers in `data-age` up, and those in `data-left` down.
    """
    holding, state, name = row.primary, row.state, printable(row.name)
    found = SimpleNamespace(
        checkbox="",
        name=format_html("{}", name),  # Django strips the spaces of a text that is not safe
        state=format_html(
            '<span class="redislock-state is-{}" title="{}"><span aria-hidden="true">{}</span> {}'
            "</span>",
            *(state.code, state.meaning, state.mark, state.label),
        ),
        waiters=format_html("<strong>{}</strong>", row.info.waiters) if row.info.waiters else 0,
        kind=row.info.kind,
        using=", ".join([row.using, *map(attrgetter("using"), row.shares)]),
        **dict.fromkeys(("lease", "age", "holder", "task", "fencing_token")),
    )
    if len(name) > LONG_NAME:
        found.name = format_html('<span class="redislock-long" title="{}">{}</span>', name, name)
    if holding is None:
        return found

    shown = shown_holders(row)
    label = djangos("Select this object for an action - {}")
    found.checkbox = format_html(
        '<input type="checkbox" name="{}" value="{}" class="action-select" aria-label="{}">',
        ACTION_CHECKBOX_NAME,
        json.dumps(shown),
        label.format(f"{name} ({row.using})" if row.elsewhere else name),
    )
    if state in (HELD, LATE, STALE):
        before, after = gettext("renewed %(time)s ago").split("%(time)s")
        seconds = holding.since_renewal
        found.state += format_html(
            ' <span class="redislock-renewed">{}<span data-age="{}">{}</span>{}</span>',
            *(before, f"{seconds:.3f}", short_duration(seconds), after),
        )

    # Numbers as text, so that no locale puts a comma in.
    left, lease = holding.ttl, short_duration(holding.timeout)
    found.lease = format_html(
        '<span data-left="{}">{}</span>', f"{left:.3f}", short_duration(left)
    )
    if holding.timeout:  # not in cooldown
        found.lease = format_html(
            '<span class="redislock-lease"><meter min="0" max="{lease}" low="{low}"'
            ' optimum="{lease}" value="{left}" aria-label="{label}"></meter> {text}</span>',
            lease=f"{holding.timeout:.3f}",
            low=f"{holding.timeout / 2 if holding.renewed else 0:.3f}",
            left=f"{min(max(left, 0), holding.timeout):.3f}",
            label=gettext("Left of a lease of %(lease)s") % {"lease": lease},
            text=format_html(gettext("{left} of {lease}"), left=found.lease, lease=lease),
        )
    seconds = age(holding)
    found.age = format_html(
        '<span data-age="{}">{}</span>', f"{seconds:.3f}", short_duration(seconds)
    )
    found.holder = shown[row.info.holders.index(holding)].holder
    if len(row.info.holders) > 1:
        found.holder += f" (+{len(row.info.holders) - 1})"
    if holding.holder.task_name or holding.holder.task_id:
        found.task = _task(holding.holder)
    found.fencing_token = str(holding.fence_token)  # a number would get separators
    return found


def _task(holder: Holder) -> SafeString:
    task_id = printable(holder.task_id or "")
    words = WORD_ENDS.split(printable(holder.task_name or "?"))
    return format_html(
        '{} <span class="redislock-id" title="{}">{}</span>',
        # A narrow column breaks a dotted name between its words.
        format_html_join(SafeString("<wbr>"), "{}", ((word,) for word in words)),
        task_id,
        task_id if len(task_id) <= SHORT_ID else f"{task_id[:SHORT_ID]}…",
    )


SORT_KEYS: dict[str, Callable[[ActiveLock], Any]] = {}
"""The value of each column that the list is sorted by. None comes last in both directions."""


def _column(
    name: str, label: str | Promise, sort_key: Callable[[ActiveLock], Any] | None = None
) -> Column:
    column: Any = partial(attrgetter(f"cells.{name}"))  # unlike it, a partial can have attributes
    column.__name__ = column.name = name
    column.do_not_call_in_templates = True
    column.short_description = label
    if sort_key:
        column.admin_order_field = name
        SORT_KEYS[name] = sort_key
    return column  # type: ignore[no-any-return]


def _of_holder(value: Callable[[Holding], Any]) -> Callable[[ActiveLock], Any]:
    return lambda row: value(row.primary) if row.primary else None


CHECKBOX = _column("checkbox", SafeString('<input type="checkbox" id="action-toggle">'))

NAME = _column("name", _("name"), lambda row: row.name)

CHOICES = (
    _column("state", pgettext_lazy("of a lock", "state"), lambda row: SEVERITY[row.state.code]),
    _column("lease", pgettext_lazy("of a lock", "lease"), lambda row: row.expires_at),
    _column("waiters", pgettext_lazy("of a lock", "waiters"), lambda row: row.info.waiters),
    _column(
        "age",
        pgettext_lazy("of a lock", "age"),
        _of_holder(lambda holding: -holding.acquired_at.timestamp()),
    ),
    _column("holder", pgettext_lazy("of a lock", "holder"), _of_holder(holder_text)),
    _column(
        "task",
        pgettext_lazy("of a lock", "task"),
        _of_holder(lambda holding: task_text(holding) or None),
    ),
    _column("fencing_token", _("fencing token"), _of_holder(lambda holding: holding.fence_token)),
    _column("kind", pgettext_lazy("of a lock", "kind"), lambda row: row.info.kind),
    _column("using", _("cache alias"), lambda row: row.using),
)
"""The columns that a user can leave out. The name is always the first column, and columns about
problems come before columns about identity. The last exists only if there are several aliases."""

FIRST_SHOWN = ("state", "lease", "waiters", "age", "holder", "task", "using")
"""The columns that are shown until a user chooses some."""
