"""How a lock stands, at a glance: one word, and the holder that it is told of."""

from __future__ import annotations

from django.utils.functional import Promise
from django.utils.translation import pgettext_lazy

from ..snapshots import Holding, LockInfo
from ..text import is_overdue, primary_holder

LABELS: dict[str, str | Promise] = {
    "stale": pgettext_lazy("of a lock", "stale"),
    "overdue": pgettext_lazy("of a lock", "overdue"),
    "unrenewed": pgettext_lazy("of a lock", "not renewed"),
    "later": pgettext_lazy("of a lock", "not yet renewed"),
    "held": pgettext_lazy("of a lock", "held"),
    "cooldown": pgettext_lazy("of a lock", "cooldown"),
    "waiting": pgettext_lazy("of a lock", "waiting"),
}
"""What a state is called; who needs attention comes first."""

MARKS = {
    "stale": "▲",
    "overdue": "△",
    "unrenewed": "○",
    "later": "○",
    "held": "●",
    "cooldown": "◆",
    "waiting": "…",
}

RANKS = {state: rank for rank, state in enumerate(LABELS)}


def state_of(info: LockInfo) -> str:
    """Return a key of `LABELS`."""
    holding = primary_holder(info)
    if holding is None or info.state != "held":
        return info.state
    return state_of_holding(holding)


def state_of_holding(holding: Holding) -> str:
    """Return a key of `LABELS`."""
    if not holding.timeout:
        return "cooldown"
    if holding.is_stale:
        return "stale"
    if is_overdue(holding):
        return "overdue"
    if holding.renews_later:
        return "later"
    return "held" if holding.renewed else "unrenewed"


def ends_at(info: LockInfo) -> float:
    """Return when the last of its leases ends, by Redis's clock; 0 where nobody holds it.

    Not the seconds that are left: they are as of the moment in which each lock was read.
    """
    return max((holding.expires_at.timestamp() for holding in info.holders), default=0.0)
