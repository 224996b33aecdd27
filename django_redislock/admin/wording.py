"""What the pages say of locks and holders, as text that is safe to show."""

import json
from collections.abc import Callable, Sequence

from django.contrib import messages
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..info import Holding, LockInfo
from ..text import age, holder_text, printable, short_duration, shown_metadata, task_text

NAMES_IN_MESSAGE = 5


def of_first(info: LockInfo, text: Callable[[Holding], str]) -> str | None:
    return text(info.first) or None if info.first else None


def with_others(info: LockInfo) -> str | None:
    others = len(info.holders) - 1
    text = of_first(info, holder_text)
    return f"{text} (+{others})" if others > 0 else text


def age_text(holding: Holding) -> str:
    return short_duration(age(holding))


def left_text(holding: Holding) -> str:
    return short_duration(holding.ttl)


def fence_text(holding: Holding) -> str:
    # As text, so that no locale puts separators in.
    return str(holding.fence_token)


Facts = list[tuple[str, str]]


def lock_facts(info: LockInfo) -> Facts:
    return [
        (_("Name"), printable(info.name)),
        (_("Kind"), printable(info.kind)),
        (_("State"), printable(info.state)),
        (_("Capacity"), str(info.capacity)),
        (_("Waiters"), str(info.waiters)),
    ]


def holding_facts(holding: Holding) -> Facts:
    holder = holding.holder
    return [
        (_("Host"), printable(holder.host)),
        (_("Process"), str(holder.pid)),
        (_("Thread"), printable(holder.thread)),
        (_("Task"), printable(holder.task_name or "")),
        (_("Task id"), printable(holder.task_id or "")),
        (_("Acquired"), holding.acquired_at.isoformat(sep=" ", timespec="milliseconds")),
        (_("Age"), age_text(holding)),
        (_("Lease"), short_duration(holding.timeout)),
        (_("Time left"), left_text(holding)),
        (_("Expires"), holding.expires_at.isoformat(sep=" ", timespec="milliseconds")),
        (_("Fencing token"), fence_text(holding)),
        (_("Weight"), str(holding.weight)),
        (_("Metadata"), metadata_text(holding)),
    ]


def metadata_text(holding: Holding) -> str:
    if not holding.metadata:
        return ""
    text = json.dumps(shown_metadata(holding.metadata), ensure_ascii=False, indent=2, default=str)
    return "\n".join(printable(line) for line in text.split("\n"))


def confirmation_row(name: str, holding: Holding) -> dict[str, str]:
    return {
        "name": printable(name),
        "holder": holder_text(holding),
        "task": task_text(holding),
        "age": age_text(holding),
        "left": left_text(holding),
        "fence": fence_text(holding),
    }


def log_text(holding: Holding) -> str:
    """Return the line for the log of admin actions: plain text, in one language as logs are."""
    task = task_text(holding)
    held_by = f"{holder_text(holding)}, task {task}" if task else holder_text(holding)
    return (
        f"Released by force. Held by {held_by} for {age_text(holding)};"
        f" fencing token {fence_text(holding)}."
    )


def away_text(error: Exception) -> str:
    return _("The locks can't be read: %(error)s") % {"error": printable(error)}


def released_text(names: Sequence[str]) -> str:
    if len(names) == 1:
        return _("Released “%(name)s”.") % {"name": printable(names[0])}
    if not names:
        return _("Nothing was released.")
    return _("Released %(count)d locks.") % {"count": len(names)}


def level_of(released: Sequence[str]) -> int:
    return messages.SUCCESS if released else messages.WARNING


def gone_text(names: Sequence[str]) -> str:
    shown = ", ".join(printable(name) for name in names[:NAMES_IN_MESSAGE])
    if len(names) > NAMES_IN_MESSAGE:
        shown += ", …"
    return ngettext(
        "%(count)d has changed hands or come free since, and was left alone: %(names)s",
        "%(count)d have changed hands or come free since, and were left alone: %(names)s",
        len(names),
    ) % {"count": len(names), "names": shown}
