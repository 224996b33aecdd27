"""Advice for an operator about a lock: whether releasing it is safe, and what to check first.

The admin shows it in the language of the user, and `manage.py locks` in English.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from .lock_state import (
    COOLDOWN,
    HANDOVER,
    HELD,
    LATE,
    QUEUED,
    STALE,
    UNRENEWED,
    QueuedTask,
    is_lengthened,
    overdue_for,
    primary_holder,
    queued_task,
    renewal_interval,
    state_of,
    state_of_holding,
    was_extended,
)
from .snapshots import Holding, LockInfo
from .text import age, printable, process_text, read_at, short_duration


@dataclass(frozen=True, slots=True)
class Advice:
    """Whether releasing a lock is safe, as far as that is known."""

    level: str
    """The code of the lock's state, or ``"free"``."""

    head: str
    """The answer in a few words."""

    reason: str
    """Sentences on the holder, and on what a release does."""

    next_step: str = ""
    """The next action. It can be empty."""

    command: str = ""
    """The command of that action, which is run on the host of the holder. It can be empty."""


Answer: TypeAlias = tuple[str, str]
"""The `head` and the `reason` of an `Advice`."""


def advice(info: LockInfo | None, clock: Callable[[datetime], str]) -> Advice:
    """Return whether releasing a lock is safe, and what to check first.

    Args:
        info: The lock, or None if it is free.
        clock: Returns a time as people read it.
    """
    if info is None:
        return Advice("free", pgettext("of a lock", "Free."), _("Its history is below."))
    primary = primary_holder(info)
    if primary is None:
        return Advice(HANDOVER.code, str(HANDOVER.meaning), _("A release has no effect."))
    head, reason = _answer(info, clock)
    if info.kind == "quorum":
        reason = join_sentences([reason, quorum_text()])
    return Advice(state_of_holding(primary).code, head, reason, *_next_step(primary))


def quorum_text() -> str:
    return _(
        "A quorum lock stays held until a majority of its servers have released it. Each of its "
        "waiters is in the queue of only one of them."
    )


def deadlock_text(count: int) -> str:
    """Return what a deadlock of so many waiters means, and what to do: nothing for none."""
    text = ngettext(
        "The waiter holds this lock itself, so it waits until it gives up or its lease expires. "
        "End its process or task, and see where its code acquires the lock twice.",
        "Each of %(count)d waits for a lock that the next one holds, so all wait until one of "
        "them gives up or loses its lease. End one of their processes or tasks, and let all code "
        "acquire these locks in the same order.",
        count,
    )
    return text % {"count": count} if count else ""


def _next_step(holding: Holding) -> tuple[str, str]:
    """Return the next action, and its command."""
    state, holder = state_of_holding(holding), holding.holder
    if state is QUEUED:
        text = _(
            "Check that the message of the task is still in the broker, and that a worker "
            "consumes its queue."
        )
        return text, ""
    if state in (COOLDOWN, HANDOVER) or not (holder.host and holder.pid):
        return "", ""
    if state in (LATE, STALE, UNRENEWED):
        text = _("To see whether the process exists, run on %(host)s:")
        command = f"ps -p {holder.pid}"
    else:
        text = _("To see what the process does, run on %(host)s:")
        command = f"py-spy dump --pid {holder.pid}"
    return text % {"host": printable(holder.host)}, command


def _answer(info: LockInfo, clock: Callable[[datetime], str]) -> Answer:
    overdue = [each for each in info.holders if state_of_holding(each) in (LATE, STALE)]
    if overdue and len(overdue) < len(info.holders):
        return _some_overdue(overdue, info)
    if overdue:
        return _overdue(overdue)
    state = state_of(info)
    holders = [holding for holding in info.holders if state_of_holding(holding) is state]
    if state is COOLDOWN:
        return _cooling(holders[0])
    if state is HANDOVER:
        return _handed_over(holders[0])
    if queued := queued_task(holders[0]):
        return _queued(holders[0], queued, clock)
    return _in_use(holders) if state is HELD else _unrenewed(holders)


def _cooling(holding: Holding) -> Answer:
    text = _(
        "The holder has released the lock, which stays locked for another %(left)s. Nobody works "
        "under it. A release is safe, but lets the next holder start earlier than planned."
    )
    return pgettext("of a lock", "In cooldown."), text % {"left": short_duration(holding.ttl)}


def _handed_over(holding: Holding) -> Answer:
    text = _(
        "The first waiter was granted the lock %(ago)s ago, and has %(left)s to confirm it. If it "
        "does not, the lock passes to the next one. Look again in a moment."
    )
    values = {"ago": short_duration(age(holding)), "left": short_duration(holding.ttl)}
    return _("Handover: releasing is not safe."), text % values


def _queued(holding: Holding, queued: QueuedTask, clock: Callable[[datetime], str]) -> Answer:
    values = {"sender": process_text(holding.holder), "left": short_duration(holding.ttl)}
    texts = [
        _("The task was sent by %(sender)s, which does not run it.") % values,
        _eta_text(holding, queued.eta, clock) if queued.eta else "",
        _("It is in the broker queue “%(queue)s”.") % {"queue": printable(queued.broker_queue)}
        if queued.broker_queue
        else "",
        _("The queue lock expires in %(left)s, if the task has not started by then.") % values,
        str(QUEUED.release),
    ]
    return _("Queued: the task has not started."), join_sentences(texts)


def _eta_text(holding: Holding, eta: datetime, clock: Callable[[datetime], str]) -> str:
    if eta < read_at(holding):
        return _("It could have started at %(eta)s.") % {"eta": clock(eta)}
    return _("It starts at %(eta)s at the earliest.") % {"eta": clock(eta)}


def _overdue(overdue: list[Holding]) -> Answer:
    longest = max(overdue, key=overdue_for)
    values = {
        "count": len(overdue),
        "overdue": short_duration(overdue_for(longest)),
        "ago": short_duration(longest.since_renewal),
        "interval": short_duration(renewal_interval(longest)),
        "left": short_duration(max(holding.ttl for holding in overdue)),
    }
    text = ngettext(
        "The lease began or was last renewed %(ago)s ago, and its renewal was due every "
        "%(interval)s. The holder is dead or paused, or cannot reach Redis. Release the lock only "
        "if its process is gone. If you do nothing, the lease expires in %(left)s.",
        "%(count)d leases were not renewed, one of them for %(ago)s, and its renewal was due "
        "every %(interval)s. The holders are dead or paused, or cannot reach Redis. Release the "
        "lock only if their processes are gone. If you do nothing, the last lease expires in "
        "%(left)s.",
        len(overdue),
    )
    if not any(holding.is_stale for holding in overdue):
        text = ngettext(
            "The lease began or was last renewed %(ago)s ago, and its renewal was due every "
            "%(interval)s. The holder may be busy, paused or dead, or may not reach Redis. Check "
            "its process, and do not release the lock while it runs. If you do nothing, the lease "
            "expires in %(left)s.",
            "%(count)d leases were not renewed, one of them for %(ago)s, and its renewal was due "
            "every %(interval)s. The holders may be busy, paused or dead, or may not reach "
            "Redis. Check their processes, and do not release the lock while they run. If you "
            "do nothing, the last lease expires in %(left)s.",
            len(overdue),
        )
    head = _("Renewal overdue for %(overdue)s: check the process first.")
    return head % values, text % values


def _some_overdue(overdue: list[Holding], info: LockInfo) -> Answer:
    text = ngettext(
        "%(overdue)d of %(all)d holders has not renewed its lease in time. That lease expires by "
        "itself. A release of all holders takes the lock from those that are running, too.",
        "%(overdue)d of %(all)d holders have not renewed their leases in time. Those leases "
        "expire by themselves. A release of all holders takes the lock from those that are "
        "running, too.",
        len(overdue),
    )
    values = {"overdue": len(overdue), "all": len(info.holders)}
    return _("Some renewals are overdue."), text % values


def _in_use(renewed: list[Holding]) -> Answer:
    text = ngettext(
        "The process of the holder was running %(ago)s ago, when it acquired the lock or renewed "
        "its lease. The lock stays held while the process renews the lease, even if its work "
        "makes no progress, so check the process. If you release the lock, the holder notices "
        "within %(interval)s, but keeps working alongside the next one unless its code reacts to "
        "the loss.",
        "The processes of %(count)d holders were running in the last %(ago)s, when they acquired "
        "the lock or renewed their leases. The lock stays held while they renew their leases, "
        "even if their work makes no progress, so check the processes. If you release the lock, "
        "these holders notice within %(interval)s, but keep working alongside the next ones "
        "unless their code reacts to the loss.",
        len(renewed),
    )
    values = {
        "count": len(renewed),
        "ago": short_duration(max(holding.since_renewal for holding in renewed)),
        "interval": short_duration(max(map(renewal_interval, renewed))),
    }
    return _("In use: releasing is not safe."), text % values


def _unrenewed(holders: Sequence[Holding]) -> Answer:
    values = {"left": short_duration(max(holding.ttl for holding in holders))}
    if not all(holding.renews_later for holding in holders):
        head = _("Not known whether releasing is safe.")
        text = _(
            "Automatic renewal is off, so the lease does not show whether the holder is running. "
            "It expires in %(left)s."
        )
    elif any(is_lengthened(holding) for holding in holders):
        head = _("Extended: not known whether releasing is safe.")
        text = _(
            "The holder has extended the lease beyond its timeout, so the lease does not show "
            "whether the holder is running. It expires in %(left)s unless it is renewed or "
            "extended by then."
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
    return head, text % values


def join_sentences(texts: Iterable[str]) -> str:
    """Join whole sentences, as each language does. Empty ones are left out."""
    joined = ""
    for text in filter(None, texts):
        # Translators: two whole sentences, one after the other.
        both = _("%(sentence)s %(next)s") % {"sentence": joined, "next": text}
        joined = both if joined else text
    return joined
