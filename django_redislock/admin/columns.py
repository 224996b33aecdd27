"""The columns of the list, and their contents."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.template.loader import render_to_string
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as djangos  # its own texts: not for our catalogs
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from ..models import ActiveLock
from ..text import age, holder_text, printable, short_duration
from .holders import shown_holders

Column = Callable[[ActiveLock], Any]

SHORT_ID_CHARACTERS = 9  # of a task id, with an ellipsis

TEMPLATES = "admin/django_redislock/activelock"


def cells(row: ActiveLock) -> SimpleNamespace:
    """Return the contents of all columns, and a checkbox that names the holders on the page.

    The script of the page counts the numbers in `data-age` up, and those in `data-left` down. They
    are formatted here, so that no locale puts separators in.
    """
    holding, name = row.primary, printable(row.name)
    found = SimpleNamespace(
        checkbox="",
        name=format_html("{}", name),  # Django strips the spaces of a text that is not safe
        state=render_to_string(f"{TEMPLATES}/state_cell.html", {"row": row, "state": row.state}),
        waiters=0,
        **dict.fromkeys(("lease", "age", "holder", "task")),
    )
    if row.info.waiters:
        longest = row.info.longest_wait
        found.waiters = format_html(
            '<strong>{} (<span data-age="{}">{}</span>)</strong>',
            row.info.waiters,
            f"{longest:.3f}",
            short_duration(longest),
        )
    if holding is None:
        return found

    label = djangos("Select this object for an action - {}")
    found.checkbox = format_html(
        '<input type="checkbox" name="{}" value="{}" class="action-select" aria-label="{}">',
        ACTION_CHECKBOX_NAME,
        json.dumps(shown_holders(row)),
        label.format(name),
    )
    found.lease = render_to_string(f"{TEMPLATES}/lease_cell.html", {"holding": holding})
    seconds = age(holding)
    found.age = format_html(
        '<span data-age="{}">{}</span>', f"{seconds:.3f}", short_duration(seconds)
    )
    found.holder = holder_text(holding)
    if len(row.info.holders) > 1:
        found.holder += f" (+{len(row.info.holders) - 1})"
    if holding.holder.task_name or holding.holder.task_id:
        task_id = printable(holding.holder.task_id or "")
        found.task = format_html(
            '{} <span class="redislock-id" title="{}">{}</span>',
            printable(holding.holder.task_name or "?"),
            task_id,
            Truncator(task_id).chars(SHORT_ID_CHARACTERS),
        )
    return found


def _column(name: str, label: str | Promise) -> Column:
    column: Any = partial(attrgetter(f"cells.{name}"))  # unlike it, a partial can have attributes
    column.__name__ = column.admin_order_field = name
    column.short_description = label
    return column  # type: ignore[no-any-return]


CHECKBOX = _column("checkbox", SafeString('<input type="checkbox" id="action-toggle">'))

COLUMNS = (
    _column("name", _("name")),
    _column("state", pgettext_lazy("of a lock", "state")),
    _column("holder", pgettext_lazy("of a lock", "holder")),
    _column("waiters", pgettext_lazy("of a lock", "waiters")),
    _column("lease", pgettext_lazy("of a lock", "lease")),
    _column("age", pgettext_lazy("of a lock", "age")),
    _column("task", pgettext_lazy("of a lock", "task")),
)
"""The columns. The first four answer who holds the lock, and fit a narrow screen."""
