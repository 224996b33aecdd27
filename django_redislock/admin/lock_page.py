"""The data of the page of one lock: state, holders, waiters and history."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from ..advice import process_text
from ..conf import conf
from ..lock_state import (
    COOLDOWN,
    HANDOVER,
    QUEUED,
    is_overdue,
    queued_task,
    state_of,
    state_of_holding,
)
from ..manager import LockManager
from ..snapshots import Event, Holder, Holding, LockInfo, Waiter
from ..text import age, printable, read_at, redacted_metadata, short_duration
from . import timeline
from .charts import Span
from .rows import Cells, Link, event_row, party
from .timeline import BEFORE, Row, Timeline, clock, who

WAITERS = 100
"""The maximum number of waiters that are listed."""

PAST = 50
"""The maximum number of events that are listed."""

DRAWN = 20
"""The maximum number of events that are drawn. Of waiters it is half of that."""

HOLDERS = 50
"""The maximum number of holders that are shown."""

READ_WRITE = "readwrite"
"""The kind of lock whose readers weigh 1, and whose writers weigh the whole capacity."""


@dataclass(frozen=True, slots=True)
class LockDetails:
    """The state, the waiters and the history of one lock."""

    name: str
    info: LockInfo | None
    waiters: tuple[Waiter, ...]
    events: tuple[Event, ...]
    now: datetime

    @property
    def holders(self) -> tuple[Holding, ...]:
        return self.info.holders if self.info else ()

    @property
    def is_unknown(self) -> bool:
        """Whether the lock is free and has no history."""
        return not (self.info or self.events)

    @property
    def task_ids(self) -> set[str]:
        parts: tuple[Holding | Waiter | Event, ...]
        parts = (*self.holders, *self.waiters, *self.events)
        return {part.holder.task_id for part in parts if part.holder.task_id}


def read_lock(manager: LockManager, name: str) -> LockDetails:
    """Ask Redis, in three round trips at most. Raises `ValueError` if the name is invalid."""
    info = manager.get(name)
    events = manager.history(name, PAST) if conf.history else ()
    waiters = manager.queue(name, WAITERS) if info and info.waiters else ()
    if info and info.first:
        now = read_at(info.first)
    else:
        now = max([datetime.now(UTC), *(event.at for event in events)])
    return LockDetails(name, info, waiters, events, now)


def state_text(lock: LockDetails) -> str:
    """Return one sentence with the holder, the renewal and the waiters."""
    parts = {
        "held": _held_text(lock),
        "renewed": _renewal_text(lock),
        "waiting": _waiting_text(lock),
    }
    # Translators: the state of a lock, in one sentence. Each part is a text of its own here.
    if parts["renewed"]:
        return _("%(held)s; %(renewed)s; %(waiting)s.") % parts
    return (_("%(held)s; %(waiting)s.") if parts["waiting"] else _("%(held)s.")) % parts


def _held_text(lock: LockDetails) -> str:
    if not lock.info:
        return _("Nobody holds it now")
    if not lock.info.first:
        return _("Being handed over to the next waiter")
    longest = short_duration(max(map(age, lock.holders)))
    if lock.info.state == "cooldown":
        return _("Released; in cooldown (at_least_for)")
    if len(lock.holders) > 1:
        parts = {"count": len(lock.holders), "time": longest}
        return _("Held by %(count)d, the longest for %(time)s") % parts
    if queued := queued_task(lock.info.first):
        parts = {"task": printable(queued.task_name), "time": longest}
        return _("Queued: %(task)s was sent %(time)s ago") % parts
    parts = {"holder": who(lock.info.first.holder), "time": longest}
    return _("Held by %(holder)s for %(time)s") % parts


def _renewal_text(lock: LockDetails) -> str:
    if not lock.info or state_of(lock.info) in (HANDOVER, COOLDOWN, QUEUED):
        return ""
    if any(map(is_overdue, lock.holders)):
        return _("renewal overdue")
    ages = [each.since_renewal for each in lock.holders if each.renewed and each.timeout]
    if not ages:
        left = {"time": short_duration(max(holding.ttl for holding in lock.holders))}
        is_off = not all(holding.renews_later for holding in lock.holders)
        return (
            _("not renewed, expires in %(time)s") if is_off else _("expires in %(time)s")
        ) % left
    if len(lock.holders) > 1:
        return _("all renewed in the last %(time)s") % {"time": short_duration(max(ages))}
    return _("renewed %(time)s ago") % {"time": short_duration(ages[0])}


def _waiting_text(lock: LockDetails) -> str:
    count = lock.info.waiters if lock.info else 0
    if not count:
        return _("nobody waits") if lock.info else ""
    if not lock.waiters:
        return ngettext("%(count)d waits", "%(count)d wait", count) % {"count": count}
    text = ngettext(
        "%(count)d waits, for %(time)s",
        "%(count)d wait, the first for %(time)s",
        count,
    )
    return text % {"count": count, "time": short_duration(lock.waiters[0].waited)}


# Holders, the queue, the past


def cards(lock: LockDetails, link: Link) -> list[Cells]:
    return [_card(holding, lock, link) for holding in lock.holders[:HOLDERS]]


def _card(holding: Holding, lock: LockDetails, link: Link) -> Cells:
    state, lease = state_of_holding(holding), holding.timeout or holding.ttl
    left = {"left": short_duration(holding.ttl), "lease": short_duration(lease)}
    return Cells(
        level=state.code,
        word=state.label,
        mark={"late": "stale"}.get(state.code, state.code) if holding.renewed else "",
        left=round(min(max(holding.ttl, 0.0), lease), 3),
        timeout=round(lease, 3),
        left_text=_("%(left)s of %(lease)s left") % left if holding.timeout else left["left"],
        # Each is a label, a value, and the address that the value links to, if there is one.
        facts=[fact for fact in _facts(holding, lock, link) if fact[1]],
        metadata=metadata_text(holding.metadata),
    )


def _facts(holding: Holding, lock: LockDetails, link: Link) -> list[tuple[str, str, str]]:
    holder = holding.holder
    times = {"acquired": clock(holding.acquired_at, lock.now), "age": short_duration(age(holding))}
    queued = queued_task(holding)
    return [
        (
            pgettext("of a lock", "Sender") if queued else pgettext("of a lock", "Holder"),
            process_text(holder),
            "",
        ),
        (pgettext("of a lock", "Thread"), printable(holder.thread), ""),
        (pgettext("of a lock", "Task"), printable(holder.task_name or ""), ""),
        (pgettext("of a lock", "Task id"), printable(holder.task_id or ""), link(holder.task_id)),
        _acquired(holding, times),
        (_("Starts at"), clock(queued.eta, lock.now) if queued and queued.eta else "", ""),
        (_("Broker queue"), printable(queued.broker_queue) if queued else "", ""),
        (_("Waited before"), short_duration(holding.waited) if holding.waited else "", ""),
        (pgettext("of a lock", "Renewed"), _ago_text(holding), ""),
        (pgettext("of a lock", "Lease ends"), clock(holding.expires_at, lock.now), ""),
        (_("Fencing token"), str(holding.fence_token), ""),
        (_weight_label(lock.info), _weight_text(holding.weight, lock.info), ""),
    ]


def _acquired(holding: Holding, times: Mapping[str, str]) -> tuple[str, str, str]:
    if not holding.timeout:  # the history has the duration of the hold
        return pgettext("of a lock", "Acquired"), times["acquired"], ""
    return pgettext("of a lock", "Held since"), _("%(acquired)s, for %(age)s") % times, ""


def _weight_label(info: LockInfo | None) -> str:
    reads = info and info.kind == READ_WRITE
    return pgettext("of a lock", "Access") if reads else pgettext("of a lock", "Weight")


def _weight_text(weight: int, info: LockInfo | None) -> str:
    if not info or info.capacity == 1:
        return ""
    if info.kind == READ_WRITE:
        reads = weight < info.capacity
        return pgettext("of a lock", "reads") if reads else pgettext("of a lock", "writes")
    return str(weight)


def _ago_text(holding: Holding) -> str:
    if not holding.renewed or not holding.timeout:
        return ""
    return _("%(time)s ago") % {"time": short_duration(holding.since_renewal)}


def metadata_text(metadata: Mapping[str, Any]) -> str:
    if not metadata:
        return ""
    text = json.dumps(redacted_metadata(metadata), ensure_ascii=False, indent=2, default=str)
    return "\n".join(printable(line) for line in text.split("\n"))


def queue_rows(lock: LockDetails, link: Link) -> list[Cells]:
    return [
        Cells(
            place=place,
            party=party(waiter.holder, link),
            since=clock(waiter.since, lock.now),
            waited=short_duration(waiter.waited),
            weight=_weight_text(waiter.weight, lock.info),
            metadata=metadata_text(waiter.metadata),
        )
        for place, waiter in enumerate(lock.waiters, 1)
    ]


def past_rows(lock: LockDetails, link: Link) -> list[Cells]:
    return [
        event_row(event, lock.now, link, metadata=metadata_text(event.metadata))
        for event in lock.events
    ]


# The timeline


def chart(lock: LockDetails) -> Timeline | None:
    """Return a timeline with a row for each recent holder, each holder and each waiter."""
    rows = [
        *(_past_row(event, lock.now) for event in reversed(lock.events[:DRAWN])),
        *(_held_row(holding, lock.now) for holding in lock.holders[:DRAWN]),
        *(_queue_row(waiter, lock.now) for waiter in lock.waiters[: DRAWN // 2]),
    ]
    spans = [span for row in rows for span in (*row.held, *row.waited)]
    if not spans:
        return None
    return timeline.draw(rows, timeline.scale_of(spans, lock.now), waits=BEFORE, mark_all=True)


def _past_row(event: Event, now: datetime) -> Row:
    wait = timeline.wait_of_event(event)
    never = event.acquired_at is None and event.outcome != "lost"
    held = () if never else (timeline.span_of_event(event),)
    return _row(event.holder, clock(event.at, now), held, wait)


def _held_row(holding: Holding, now: datetime) -> Row:
    held = (timeline.span_of_holding(holding, now),)
    return _row(
        holding.holder, pgettext("of a lock", "now"), held, timeline.wait_of_holding(holding)
    )


def _queue_row(waiter: Waiter, now: datetime) -> Row:
    return _row(
        waiter.holder, pgettext("of a lock", "waits"), (), timeline.wait_of_waiter(waiter, now)
    )


def _row(holder: Holder, note: str, held: tuple[Span, ...], wait: Span | None) -> Row:
    waited = (wait,) if wait else ()
    return Row(process_text(holder), who(holder), held, waited, note=note)
