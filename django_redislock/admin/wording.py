"""The messages of the admin, and its entries in Django's log of admin actions."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..advice import sentences
from ..lock_state import renewal_interval
from ..manager import locks
from ..snapshots import Holding, LockInfo
from ..text import age, error_text, holder_text, printable, short_duration, task_text
from .holders import HolderCheck, ShownHolder
from .timeline import listed

NAMES_IN_MESSAGE = 5

LOG_REQUESTED = "Force-release requested"
LOG_DONE = "Force-released"
LOG_GONE = "Not released, because the holder no longer had the lock"
"""How a log entry begins: before the release, and after it."""

LOG_REVOKED = "Revoked the task of the holder"
"""How the log entry of a revocation begins."""

Released = Sequence[tuple[ShownHolder, Holding]]


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


def change_text(seen: ShownHolder, info: LockInfo | None) -> str:
    """Return what happened to a holder that was seen and holds no more."""
    was = _who(seen.holder, seen.fence_token)
    facts = {"name": printable(seen.name), "was": was}
    if info is None or (now := info.first) is None:
        return _("“%(name)s” was released. It was held by %(was)s.") % facts
    facts["now"] = _who(holder_text(now), now.fence_token)
    return _("“%(name)s” changed hands: it was held by %(was)s, now by %(now)s.") % facts


def _who(holder: str, fence_token: int) -> str:
    facts = {"holder": printable(holder) or "?", "fence": str(fence_token)}
    return _("%(holder)s (fencing token %(fence)s)") % facts


def gone_text(gone: Sequence[tuple[ShownHolder, LockInfo | None]]) -> str:
    shown = [change_text(*each) for each in gone[:NAMES_IN_MESSAGE]]
    shown += ["…"] if len(gone) > NAMES_IN_MESSAGE else []
    return ngettext(
        "Skipped %(count)d lock that changed after you opened the page: %(changes)s",
        "Skipped %(count)d locks that changed after you opened the page: %(changes)s",
        len(gone),
    ) % {"count": len(gone), "changes": sentences(shown)}


def unlogged_text(unlogged: Released, error: Exception) -> str:
    """Return which locks were not released, because nothing could be written to the log."""
    names = [f"“{printable(seen.name)}”" for seen, _holding in unlogged[:NAMES_IN_MESSAGE]]
    names += ["…"] if len(unlogged) > NAMES_IN_MESSAGE else []
    facts = {"count": len(unlogged), "names": listed(names), "error": type(error).__name__}
    text = ngettext(
        "%(count)d lock was not released, because its release could not be written to the log of "
        "admin actions (%(error)s): %(names)s.",
        "%(count)d locks were not released, because their release could not be written to the "
        "log of admin actions (%(error)s): %(names)s.",
        len(unlogged),
    )
    return text % facts


def released_text(released: Released) -> str:
    """Return what was released, and by when the holders know."""
    if not released:
        return _("Nothing was released.")
    # A quorum lock has the same holder on each of its servers.
    holders = {holding.token: (seen, holding) for seen, holding in released}
    texts = [_("Released “%(name)s”.") % {"name": printable(released[0][0].name)}]
    if len(holders) > 1:
        text = ngettext("Released %(count)d lock.", "Released %(count)d locks.", len(holders))
        texts = [text % {"count": len(holders)}]
    held = [holding for _seen, holding in holders.values() if holding.timeout]
    renewed = [renewal_interval(each) for each in held if each.renewed]
    if renewed:
        text = _("The holder learns of it within %(seconds)s, and may keep writing until then.")
        texts += [text % {"seconds": short_duration(max(renewed))}]
    if len(renewed) < len(held):
        text = _("Holders without automatic renewal notice only at their next release or check.")
        texts += [text]
    return sentences(texts)


def revoked_text(task_id: str, workers: int) -> str:
    """Return how many workers replied to a revocation."""
    if not workers:
        text = _("The revocation of task %(task)s was sent, but no worker replied.")
        return text % {"task": task_id}
    text = ngettext(
        "Task %(task)s was revoked: %(count)d worker replied.",
        "Task %(task)s was revoked: %(count)d workers replied.",
        workers,
    )
    return text % {"task": task_id, "count": workers}
