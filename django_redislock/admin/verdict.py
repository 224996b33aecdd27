"""How a lock stands, in a sentence, and whether it is safe to release."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from ..info import Holding
from ..text import age, short_duration
from .joining import sentences
from .timeline import who
from .wording import learns_within, quorum_text

if TYPE_CHECKING:
    from .one import Look


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether it is safe to release, as far as that is known."""

    level: str
    """``"alive"``, ``"stale"``, ``"unknown"``, ``"cooldown"``, ``"waiting"`` or ``"free"``."""

    head: str

    text: str


def state_text(seen: Look) -> str:
    """Return in a sentence how it stands."""
    told = {
        "held": _held_text(seen),
        "renewed": _renewal_text(seen),
        "waiting": _waiting_text(seen),
    }
    # Translators: how a lock stands, in one sentence. Each part is a text of its own here.
    if told["renewed"]:
        return _("%(held)s; %(renewed)s; %(waiting)s.") % told
    return (_("%(held)s; %(waiting)s.") if told["waiting"] else _("%(held)s.")) % told


def _held_text(seen: Look) -> str:
    if not seen.info:
        return _("Nobody holds it now")
    if not seen.info.first:
        return _("Nobody holds it at this moment")
    longest = short_duration(max(map(age, seen.holders)))
    if seen.info.state == "cooldown":
        return _("Released, and kept for a while so that nobody else begins too soon")
    if len(seen.holders) > 1:
        told = {"count": len(seen.holders), "time": longest}
        return _("Held by %(count)d, the longest for %(time)s") % told
    told = {"holder": who(seen.info.first.holder), "time": longest}
    return _("Held by %(holder)s for %(time)s") % told


def _renewal_text(seen: Look) -> str:
    if not seen.info or not seen.info.first or seen.info.state == "cooldown":
        return ""
    stale = [holding for holding in seen.holders if holding.is_stale]
    if stale:
        return _stale_text(stale, seen)
    ages = [ago for holding in seen.holders if (ago := renewed_ago(holding)) is not None]
    if not ages:
        left = short_duration(max(holding.ttl for holding in seen.holders))
        return _("not renewed, ends in %(time)s") % {"time": left}
    if len(seen.holders) > 1:
        return _("all renewed in the last %(time)s") % {"time": short_duration(max(ages))}
    return _("renewed %(time)s ago") % {"time": short_duration(ages[0])}


def _stale_text(stale: list[Holding], seen: Look) -> str:
    silent = short_duration(max(renewed_ago(holding) or 0.0 for holding in stale))
    if len(seen.holders) == 1:
        return _("last renewed %(time)s ago") % {"time": silent}
    told = {"count": len(stale), "time": silent}
    return (
        ngettext(
            "%(count)d is stale, last renewed %(time)s ago",
            "%(count)d are stale, one last renewed %(time)s ago",
            len(stale),
        )
        % told
    )


def _waiting_text(seen: Look) -> str:
    count = seen.info.waiters if seen.info else 0
    if not count:
        return _("nobody waits") if seen.info else ""
    if not seen.waiters:
        return ngettext("%(count)d waits", "%(count)d wait", count) % {"count": count}
    text = ngettext(
        "%(count)d waits, for %(time)s",
        "%(count)d wait, the first for %(time)s",
        count,
    )
    return text % {"count": count, "time": short_duration(seen.waiters[0].waited)}


def renewed_ago(holding: Holding) -> float | None:
    """Return how many seconds ago its lease began to run; None if it is not renewed."""
    if not holding.renewed or not holding.timeout:
        return None
    return holding.since_renewal


def verdict(seen: Look) -> Verdict:
    """Return what is known of whether a release is safe."""
    found = _verdict(seen)
    if seen.info and seen.info.first and seen.info.kind == "quorum":
        return replace(found, text=sentences([found.text, quorum_text()]))
    return found


def _verdict(seen: Look) -> Verdict:
    if not seen.info:
        text = _("There is nothing to release. Its past is below.")
        return Verdict("free", pgettext("of a lock", "Free."), text)
    if not seen.info.first:
        text = _("There is nothing to release: who waits first is let in next.")
        return Verdict("waiting", _("Between two holders."), text)
    if seen.info.state == "cooldown":
        return _cooling(seen.info.first)
    stale = [holding for holding in seen.holders if holding.is_stale]
    alive = [holding for holding in seen.holders if holding.renewed and not holding.is_stale]
    if stale and len(stale) < len(seen.holders):
        return _some_stale(stale, seen)
    if stale:
        return _stale(stale)
    return _alive(alive) if alive else _unknown(seen)


def _cooling(holding: Holding) -> Verdict:
    text = _(
        "Its holder has let go of it; as asked, it stays taken for %(left)s more. A release only "
        "ends this sooner."
    )
    told = {"left": short_duration(holding.ttl)}
    return Verdict("cooldown", pgettext("of a lock", "Cools down."), text % told)


def _stale(stale: list[Holding]) -> Verdict:
    ago = max(renewed_ago(holding) or 0.0 for holding in stale)
    left = max(holding.ttl for holding in stale)
    text = ngettext(
        "The holder has not renewed its lease for %(ago)s: it is dead or paused, or cannot reach "
        "Redis. Once you know that its process is gone, a release is safe. Left alone, the lease "
        "ends in %(left)s.",
        "%(count)d holders have not renewed their leases, one for %(ago)s: they are dead or "
        "paused, or cannot reach Redis. Once you know that their processes are gone, a release "
        "is safe. Left alone, the last lease ends in %(left)s.",
        len(stale),
    )
    told = {"count": len(stale), "ago": short_duration(ago), "left": short_duration(left)}
    return Verdict("stale", _("Stale: probably safe to release."), text % told)


def _some_stale(stale: list[Holding], seen: Look) -> Verdict:
    text = ngettext(
        "%(stale)d of %(all)d holders has not renewed its lease. That lease ends by itself; a "
        "release takes the lock from the others too, who are at work.",
        "%(stale)d of %(all)d holders have not renewed their leases. Their leases end by "
        "themselves; a release takes the lock from the others too, who are at work.",
        len(stale),
    )
    told = {"stale": len(stale), "all": len(seen.holders)}
    return Verdict("stale", _("Some holders are stale."), text % told)


def _alive(alive: list[Holding]) -> Verdict:
    text = ngettext(
        "The holder is at work: it renewed its lease %(ago)s ago. After a release it goes on "
        "beside the next one until it notices, at its next renewal, within %(third)s.",
        "%(count)d holders are at work, and one renewed its lease %(ago)s ago. After a release "
        "they go on beside the next ones until they notice, at their next renewals, within "
        "%(third)s.",
        len(alive),
    )
    told = {
        "count": len(alive),
        "ago": short_duration(min(renewed_ago(holding) or 0.0 for holding in alive)),
        "third": short_duration(max(map(learns_within, alive))),
    }
    return Verdict("alive", _("Alive: not safe to release."), text % told)


def _unknown(seen: Look) -> Verdict:
    text = _(
        "The lease is not renewed, so it does not tell whether the holder is still at work. It "
        "ends by itself in %(left)s."
    )
    told = {"left": short_duration(max(holding.ttl for holding in seen.holders))}
    return Verdict("unknown", _("Not known whether it is safe to release."), text % told)
