"""The messages of the admin, and its entries in Django's log of admin actions."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..manager import locks
from ..snapshots import Holding
from ..text import age, error_text, holder_text, printable, short_duration, task_text
from .holders import HeldHolder, HolderCheck, ShownHolder

LOG_REQUESTED = "Force-release requested"
LOG_DONE = "Force-released"
LOG_GONE = "Not released, because the holder no longer had the lock"
"""How a log entry begins: before the release, and after it."""

LOG_REVOKED = "Revoked the task of the holder"
"""How the log entry of a revocation begins."""


def log_text(seen: ShownHolder, holding: Holding, event: str) -> str:
    """Return the text of an entry in the log of admin actions, which is always in English."""
    task = task_text(holding)
    held_by = f"{holder_text(holding)}, task {task}" if task else holder_text(holding)
    where = f" on {printable(seen.using)}" if seen.using not in ("", locks.alias) else ""
    return (
        f"{event}{where}. Held by {held_by} for {short_duration(age(holding))};"
        f" fencing token {holding.fence_token}."
    )


def away_text(error: BaseException, alias: str = "") -> str:
    facts = {"alias": printable(alias), "error": error_text(error)}
    if not alias:
        return _("The locks cannot be read: %(error)s") % facts
    return _("The locks of “%(alias)s” cannot be read: %(error)s") % facts


def left_out_texts(check: HolderCheck) -> list[str]:
    """Return why holders are left out of a release."""
    texts = [away_text(error, alias) for alias, error in check.away]
    if check.denied:  # without a word of which
        text = ngettext(
            "%(count)d holder was left out, because you may not release its lock.",
            "%(count)d holders were left out, because you may not release their locks.",
            check.denied,
        )
        texts.append(text % {"count": check.denied})
    return texts


def change_text(seen: ShownHolder, fence_token: int | None) -> str:
    """Return what happened to a lock after its holder was seen."""
    # Numbers as text, so that no locale puts separators in.
    facts = {"name": printable(seen.name), "was": str(seen.fence_token), "now": str(fence_token)}
    if fence_token is None:
        return _("“%(name)s” was released.") % facts
    return _("“%(name)s” changed hands: its fencing token was %(was)s, and is %(now)s.") % facts


def gone_text(count: int) -> str:
    return ngettext(
        "Skipped %(count)d lock that changed after you opened the page.",
        "Skipped %(count)d locks that changed after you opened the page.",
        count,
    ) % {"count": count}


def unlogged_text(count: int, error: Exception) -> str:
    """Return that locks were not released, because the log of admin actions takes no entry."""
    return ngettext(
        "%(count)d lock was not released, because its release could not be written to the log of "
        "admin actions (%(error)s).",
        "%(count)d locks were not released, because their release could not be written to the "
        "log of admin actions (%(error)s).",
        count,
    ) % {"count": count, "error": type(error).__name__}


def released_text(released: Sequence[HeldHolder]) -> str:
    # A quorum lock has the same holder on each of its servers.
    count = len({holding.token for _seen, holding in released})
    if not count:
        return _("Nothing was released.")
    if count == 1:
        return _("Released “%(name)s”.") % {"name": printable(released[0][0].name)}
    return ngettext("Released %(count)d lock.", "Released %(count)d locks.", count) % {
        "count": count
    }
