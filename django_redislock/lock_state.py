"""The state of a lock, derived from a snapshot: one word, what it means, what a release does.

The admin, the terminal, the JSON output, the metrics and the docs all use these states.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.dateparse import parse_datetime
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from .snapshots import STALE_AFTER, Holding, LockInfo
from .text import age, process_text

RENEWAL_DUE_FRACTION = 1 / 3
"""The part of a lease after which its renewal is due."""

RENEWAL_GRACE_SECONDS = 1.0
RENEWAL_GRACE_FRACTION = 1 / 20
"""A renewal is overdue if it is late by more than both: these seconds, and this part of the lease.
A busy machine can be that late."""


@dataclass(frozen=True, slots=True)
class LockState:
    """One state that a lock, or a hold of it, can be in."""

    code: str
    """The stable English word for data, addresses and style sheets."""

    label: str | Promise
    """The word that people read. Translated."""

    mark: str
    """A sign that shows the state without colour."""

    meaning: str | Promise
    """One sentence that explains the state. Translated."""

    release: str | Promise
    """One sentence on what a force-release does in this state. Translated."""


STALE = LockState(
    "stale",
    pgettext_lazy("of a lock", "stale"),
    "▲",
    _("Half of the lease has passed without a renewal: the holder is dead, paused or cut off."),
    _(
        "If the process still runs, it keeps working alongside the next holder unless its code "
        "reacts to the loss."
    ),
)
LATE = LockState(
    "late",
    pgettext_lazy("of a lock", "late"),
    "△",
    _("The renewal is overdue, but by less than the stale limit: the holder may only be busy."),
    _(
        "If the process still runs, it keeps working alongside the next holder unless its code "
        "reacts to the loss."
    ),
)
UNRENEWED = LockState(
    "unrenewed",
    pgettext_lazy("of a lock", "held (no renewal)"),
    "○",
    _(
        "The lease is not renewed, or is longer than its timeout, so it does not show whether the "
        "holder is running."
    ),
    _("The holder is not stopped, and notices only at its next renewal, release or check."),
)
HELD = LockState(
    "held",
    pgettext_lazy("of a lock", "held"),
    "●",
    _("The process of the holder renews the lease in time, though its work may hang."),
    _(
        "The holder is not stopped: it keeps working alongside the next one unless its code "
        "reacts to the loss."
    ),
)
HANDOVER = LockState(
    "handover",
    pgettext_lazy("of a lock", "handover"),
    "…",
    _("The lock is being handed over to the first waiter, which has not confirmed it yet."),
    _("If the waiter has begun, it works alongside the next holder until its next renewal."),
)
QUEUED = LockState(
    "queued",
    pgettext_lazy("of a lock", "queued"),
    "◇",
    _("A task was sent and waits for a worker: this is its queue lock, which nobody renews."),
    _("A release does not cancel the queued task, and allows a second one like it."),
)
COOLDOWN = LockState(
    "cooldown",
    pgettext_lazy("of a lock", "cooldown"),
    "◆",
    _("The holder has released the lock, which stays locked because of at_least_for."),
    _("A release ends the cooldown early, and stops nobody."),
)

STATES = {
    state.code: state for state in (STALE, LATE, HELD, UNRENEWED, HANDOVER, QUEUED, COOLDOWN)
}
"""The states by code. A lock with several holders has the first of their states, so a holder that
may be dead comes first, and then a holder that is running."""

SEVERITY = {code: rank for rank, code in enumerate(STATES)}
"""The place of each code in that order."""


def state_of(info: LockInfo) -> LockState:
    """Return the state of a lock: the state of the holder that a line about it shows."""
    return state_of_holding(primary_holder(info))


def state_of_holding(holding: Holding | None) -> LockState:
    """Return the state of one hold, or of a lock that has none."""
    if not holding:
        return HANDOVER
    if not holding.timeout:
        return COOLDOWN
    if holding.unconfirmed:
        return HANDOVER
    if not holding.renewed:
        return QUEUED if is_queued(holding) else UNRENEWED
    seconds = holding.since_renewal
    if seconds > holding.timeout * STALE_AFTER:
        return STALE
    grace = max(RENEWAL_GRACE_SECONDS, holding.timeout * RENEWAL_GRACE_FRACTION)
    return LATE if seconds > holding.timeout * RENEWAL_DUE_FRACTION + grace else HELD


def primary_holder(info: LockInfo) -> Holding | None:
    """Return the holder that a line about the lock shows: the first of those whose state comes
    first in `STATES`."""
    if len(info.holders) == 1:
        return info.holders[0]

    def severity(holding: Holding) -> int:
        return SEVERITY[state_of_holding(holding).code]

    return min(info.holders, key=severity, default=None)


def current_holds(info: LockInfo | None) -> list[Holding]:
    """Return the holds that have not ended. A hold in cooldown has."""
    holders = info.holders if info else ()
    return [each for each in holders if state_of_holding(each) is not COOLDOWN]


def urgency(info: LockInfo, state: LockState | None = None) -> tuple[int, float, str]:
    """Return a sort key: stale locks, late locks, the longest waits, the name.

    Pass the state of the lock if it is known.
    """
    # All states without an overdue renewal have the same rank.
    rank = min(SEVERITY[(state or state_of(info)).code], SEVERITY[HELD.code])
    return rank, -info.longest_wait, info.name


def process_of(holding: Holding) -> str:
    """Return the process in which the holder runs, such as ``web-1:311``. A task that was only
    sent runs in none: an empty string."""
    return "" if is_queued(holding) else process_text(holding.holder)


@dataclass(frozen=True, slots=True)
class ProcessLocks:
    """The locks that a process holds."""

    process: str
    """Host and pid, such as ``web-1:311``."""

    names: tuple[str, ...]
    """The names of the locks. Untrusted."""

    stale: int
    """How many of them are stale."""

    oldest: float
    """For how many seconds it has held the oldest of them."""


def by_process(infos: Iterable[LockInfo]) -> list[ProcessLocks]:
    """Return the processes that hold locks: those with the most stale locks first, then those with
    the most locks. A task that was only sent runs in none."""
    held_in: dict[str, dict[str, Holding]] = defaultdict(dict)
    for info in infos:
        for holding in current_holds(info):
            if process := process_of(holding):
                held_in[process].setdefault(info.name, holding)
    found = [
        ProcessLocks(
            process=process,
            names=tuple(sorted(held)),
            stale=sum(holding.is_stale for holding in held.values()),
            oldest=max(map(age, held.values())),
        )
        for process, held in held_in.items()
    ]
    return sorted(found, key=lambda each: (-each.stale, -len(each.names), each.process))


# Renewal


def renewal_interval(holding: Holding) -> float:
    """Return the seconds between two renewals."""
    return holding.timeout * RENEWAL_DUE_FRACTION


def renewal_due_in(holding: Holding) -> float:
    """Return the seconds until a renewal is due, or 0 if one is overdue."""
    return max(renewal_interval(holding) - holding.since_renewal, 0.0)


def overdue_for(holding: Holding) -> float:
    """Return for how many seconds a renewal has been due."""
    return max(holding.since_renewal - renewal_interval(holding), 0.0)


def was_renewed(holding: Holding) -> bool:
    """Return whether the holder, which renews its lease, has done so since the acquisition."""
    added = (holding.expires_at - holding.acquired_at).total_seconds() - holding.timeout
    # A waiter that confirms its grant prolongs its lease, too, but soon after the acquisition.
    return holding.renewed and added > holding.timeout * RENEWAL_DUE_FRACTION / 2 > 0


def was_extended(holding: Holding) -> bool:
    """Return whether the holder has had the lock for longer than its first lease."""
    return age(holding) > holding.timeout


def is_lengthened(holding: Holding) -> bool:
    """Return whether `extend()` has made the lease longer than its renewals do."""
    return holding.renews_later and holding.ttl > holding.timeout


# Queue locks


@dataclass(frozen=True, slots=True)
class QueuedTask:
    """Facts about a task that was sent and holds its queue lock. Its holder has the others."""

    eta: datetime | None
    """The earliest start, from `eta` or `countdown`. None if there is none, or it is unknown."""

    broker_queue: str
    """The broker queue (untrusted), or an empty string if the sender did not name one."""


def is_queued(holding: Holding) -> bool:
    """Return whether this is the queue lock of a task that was sent and has not started."""
    is_renewed = holding.renewed or holding.renews_later
    is_marked = holding.metadata.get("queued") is True and not is_renewed
    return bool(is_marked and holding.timeout and holding.holder.task_id)


def queued_task(holding: Holding) -> QueuedTask | None:
    """Return what is known of the queued task, or None for any other hold."""
    if not is_queued(holding):
        return None
    queue = holding.metadata.get("broker_queue")
    eta = _aware_datetime(holding.metadata.get("eta"))
    return QueuedTask(eta, queue if isinstance(queue, str) else "")


def _aware_datetime(value: Any) -> datetime | None:
    """Parse a text of the metadata, which anybody can write. Return None for anything else."""
    try:
        found = parse_datetime(value) if isinstance(value, str) else None
    except ValueError:  # the form of a date, but impossible
        return None
    return found if found and found.tzinfo else None
