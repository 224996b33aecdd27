"""How a lock stands, in a sentence, and whether it is safe to release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from ..lock_state import (
    COOLDOWN,
    HANDOVER,
    HELD,
    LATE,
    QUEUED,
    STALE,
    UNRENEWED,
    QueuedTask,
    is_overdue,
    overdue_for,
    primary_holder,
    queued_task,
    renewal_interval,
    state_of,
    state_of_holding,
    was_extended,
)
from ..snapshots import Holding, LockInfo
from ..text import age, printable, short_duration
from .joining import sentences
from .timeline import clock, process, who
from .wording import quorum_text

if TYPE_CHECKING:
    from .one import Look


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether it is safe to release, as far as that is known."""

    level: str
    """The code of the lock's state, or ``"free"``."""

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
        return _("Being handed over to the next waiter")
    longest = short_duration(max(map(age, seen.holders)))
    if seen.info.state == "cooldown":
        return _("Released; in cooldown (at_least_for)")
    if len(seen.holders) > 1:
        told = {"count": len(seen.holders), "time": longest}
        return _("Held by %(count)d, the longest for %(time)s") % told
    if queued := queued_task(seen.info.first):
        told = {"task": printable(queued.task_name), "time": longest}
        return _("Queued: %(task)s was sent %(time)s ago") % told
    told = {"holder": who(seen.info.first.holder), "time": longest}
    return _("Held by %(holder)s for %(time)s") % told


def _renewal_text(seen: Look) -> str:
    if not seen.info or state_of(seen.info) in (HANDOVER, COOLDOWN, QUEUED):
        return ""
    overdue = [holding for holding in seen.holders if is_overdue(holding)]
    if overdue:
        return _overdue_text(overdue, seen)
    ages = [ago for holding in seen.holders if (ago := renewed_ago(holding)) is not None]
    if not ages:
        return _unrenewed_text(seen.holders)
    if len(seen.holders) > 1:
        return _("all renewed in the last %(time)s") % {"time": short_duration(max(ages))}
    return _("renewed %(time)s ago") % {"time": short_duration(ages[0])}


def _overdue_text(overdue: list[Holding], seen: Look) -> str:
    longest = max(overdue, key=overdue_for)
    told = {
        "count": len(overdue),
        "ago": short_duration(longest.since_renewal),
        "interval": short_duration(renewal_interval(longest)),
    }
    if len(seen.holders) == 1:
        text = _("renewal overdue: last renewed %(ago)s ago, was due every %(interval)s")
    else:
        text = ngettext(
            "%(count)d renewal is overdue: last renewed %(ago)s ago, was due every %(interval)s",
            "%(count)d renewals are overdue, one of them last renewed %(ago)s ago, was due every "
            "%(interval)s",
            len(overdue),
        )
    return text % told


def _unrenewed_text(holders: Sequence[Holding]) -> str:
    told = {"time": short_duration(max(holding.ttl for holding in holders))}
    if not all(holding.renews_later for holding in holders):
        return _("not renewed, expires in %(time)s") % told
    if any(was_extended(holding) for holding in holders):
        return _("renewed before, expires in %(time)s unless it is renewed again") % told
    return _("renewal starts later, expires in %(time)s") % told


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
    primary = primary_holder(seen.info) if seen.info else None
    if primary and state_of_holding(primary) in (HELD, LATE, STALE, UNRENEWED):
        found = replace(found, text=sentences([found.text, _next_step(primary)]))
    if seen.info and seen.info.first and seen.info.kind == "quorum":
        return replace(found, text=sentences([found.text, quorum_text()]))
    return found


def _next_step(holding: Holding) -> str:
    holder = holding.holder
    if not (holder.host and holder.pid):
        return ""
    text = _("To see what it does, run “py-spy dump --pid %(pid)s” on %(host)s.")
    return text % {"pid": str(holder.pid), "host": printable(holder.host)}


def _verdict(seen: Look) -> Verdict:
    if not seen.info:
        text = _("There is nothing to release. Its past is below.")
        return Verdict("free", pgettext("of a lock", "Free."), text)
    if not seen.info.first:
        text = str(HANDOVER.release)
        return Verdict(HANDOVER.code, str(HANDOVER.meaning), text)
    if seen.info.state == "cooldown":
        return _cooling(seen.info.first)
    overdue = [holding for holding in seen.holders if is_overdue(holding)]
    if overdue and len(overdue) < len(seen.holders):
        return _some_overdue(overdue, seen.info)
    if overdue:
        return _overdue(overdue)
    primary = primary_holder(seen.info)
    if primary and (queued := queued_task(primary)):
        return _queued(queued, seen)
    renewed = [holding for holding in seen.holders if holding.renewed]
    return _in_use(renewed) if renewed else _unrenewed(seen.holders)


def _cooling(holding: Holding) -> Verdict:
    text = _(
        "The holder has released the lock. It stays locked for another %(left)s. A release ends "
        "the cooldown early; this is safe."
    )
    told = {"left": short_duration(holding.ttl)}
    return Verdict("cooldown", pgettext("of a lock", "In cooldown."), text % told)


def _queued(queued: QueuedTask, seen: Look) -> Verdict:
    told = {
        "sender": process(queued.sender),
        "left": short_duration((queued.expires_at - seen.now).total_seconds()),
    }
    texts = [
        _("The task was sent by %(sender)s, which does not run it.") % told,
        _("It starts at %(eta)s at the earliest.") % {"eta": clock(queued.eta, seen.now)}
        if queued.eta
        else "",
        _("It is in the broker queue “%(queue)s”.") % {"queue": printable(queued.broker_queue)}
        if queued.broker_queue
        else "",
        _("The queue lock expires in %(left)s, if the task has not started by then.") % told,
        _(
            "Check first that its message is still in the broker, and that a worker consumes "
            "this queue."
        ),
        str(QUEUED.release),
    ]
    head = _("Queued: the task has not started.")
    return Verdict(QUEUED.code, head, sentences(texts))


def _overdue(overdue: list[Holding]) -> Verdict:
    longest = max(overdue, key=overdue_for)
    told = {
        "count": len(overdue),
        "overdue": short_duration(overdue_for(longest)),
        "ago": short_duration(longest.since_renewal),
        "interval": short_duration(renewal_interval(longest)),
        "left": short_duration(max(holding.ttl for holding in overdue)),
    }
    text = ngettext(
        "The lease was last renewed %(ago)s ago, and its renewal was due every %(interval)s. The "
        "holder is dead or paused, or cannot reach Redis. Release the lock only if its process "
        "is gone. If you do nothing, the lease expires in %(left)s.",
        "%(count)d leases were not renewed, one of them for %(ago)s, and its renewal was due "
        "every %(interval)s. The holders are dead or paused, or cannot reach Redis. Release the "
        "lock only if their processes are gone. If you do nothing, the last lease expires in "
        "%(left)s.",
        len(overdue),
    )
    level = "stale"
    if not any(holding.is_stale for holding in overdue):
        level = "late"
        text = ngettext(
            "The lease was last renewed %(ago)s ago, and its renewal was due every %(interval)s. "
            "The holder may be busy, paused or dead, or may not reach Redis. Check its process, "
            "and do not release the lock while it runs. If you do nothing, the lease expires in "
            "%(left)s.",
            "%(count)d leases were not renewed, one of them for %(ago)s, and its renewal was due "
            "every %(interval)s. The holders may be busy, paused or dead, or may not reach "
            "Redis. Check their processes, and do not release the lock while they run. If you "
            "do nothing, the last lease expires in %(left)s.",
            len(overdue),
        )
    head = _("Renewal overdue for %(overdue)s: check the process first.")
    return Verdict(level, head % told, text % told)


def _some_overdue(overdue: list[Holding], info: LockInfo) -> Verdict:
    text = ngettext(
        "%(overdue)d of %(all)d holders has not renewed its lease in time. That lease expires by "
        "itself. A release takes the lock from the other holders, too.",
        "%(overdue)d of %(all)d holders have not renewed their leases in time. Those leases "
        "expire by themselves. A release takes the lock from the other holders, too.",
        len(overdue),
    )
    told = {"overdue": len(overdue), "all": len(info.holders)}
    return Verdict(state_of(info).code, _("Some renewals are overdue."), text % told)


def _in_use(renewed: list[Holding]) -> Verdict:
    text = ngettext(
        "The process of the holder is running: it renewed the lease %(ago)s ago. It may still "
        "hang, so check the process. If you release the lock, the holder is notified within "
        "%(interval)s, and runs alongside the next one until then.",
        "The processes of %(count)d holders are running: one renewed its lease %(ago)s ago. They "
        "may still hang, so check the processes. If you release the lock, these holders are "
        "notified within %(interval)s, and run alongside the next ones until then.",
        len(renewed),
    )
    told = {
        "count": len(renewed),
        "ago": short_duration(min(holding.since_renewal for holding in renewed)),
        "interval": short_duration(max(map(renewal_interval, renewed))),
    }
    return Verdict("held", _("In use: releasing is not safe."), text % told)


def _unrenewed(holders: Sequence[Holding]) -> Verdict:
    told = {"left": short_duration(max(holding.ttl for holding in holders))}
    if not all(holding.renews_later for holding in holders):
        head = _("Not known whether releasing is safe.")
        text = _(
            "Automatic renewal is off, so the lease does not show whether the holder is running. "
            "It expires in %(left)s."
        )
    elif any(was_extended(holding) for holding in holders):
        head = _("Renewed before: check the process first.")
        text = _(
            "The at_least_for of the lock has passed, and the holder has renewed the lease since "
            "then. It expires in %(left)s unless it is renewed again."
        )
    else:
        head = _("Renewal starts later: not known whether releasing is safe.")
        text = _(
            "The lock has an at_least_for that is longer than its timeout. Until that has "
            "passed, the lease does not show whether the holder is running. It expires in "
            "%(left)s unless it is renewed then."
        )
    return Verdict("unrenewed", head, text % told)
