"""The data of the page of one lock: state, holders, waiters and history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace

from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext
from redis.exceptions import RedisError

from ..advice import process_text
from ..conf import conf
from ..lock_state import (
    COOLDOWN,
    HANDOVER,
    QUEUED,
    is_overdue,
    queued_task,
    state_of,
)
from ..manager import LockManager
from ..snapshots import Event, Holder, Holding, LockInfo, Waiter
from ..text import age, printable, read_at, short_duration
from . import timeline
from .charts import Span
from .timeline import BEFORE, Row, clock, who

WAITERS = 100
"""The maximum number of waiters that are listed."""

PAST = 50
"""The maximum number of events that are listed."""

DRAWN = 20
"""The maximum number of events that are drawn. Of waiters it is half of that."""

HOLDERS = 50
"""The maximum number of holders that are shown."""


@dataclass(frozen=True, slots=True)
class LockDetails:
    """The state, the waiters and the history of one lock."""

    name: str
    alias: str
    info: LockInfo | None = None
    waiters: tuple[Waiter, ...] = ()
    events: tuple[Event, ...] = ()
    now: datetime = field(default_factory=partial(datetime.now, UTC))

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
    return LockDetails(name, manager.alias, info, waiters, events, now)


def find_lock(
    managers: Sequence[LockManager], name: str, away: list[tuple[str, Exception]]
) -> LockDetails:
    """Read a lock from the first alias that has it. A link in Django's log of actions names none.

    Aliases that cannot be read are added to `away`. If the first one is among them, and no other
    has the lock, the error is raised.
    """
    unknown = None
    for manager in managers:
        try:
            found = read_lock(manager, name)
        except (RedisError, ImproperlyConfigured) as error:
            away.append((manager.alias, error))
            continue
        if not found.is_unknown:
            return found
        unknown = unknown or found
    if unknown is None or unknown.alias != managers[0].alias:
        raise away[0][1]
    return unknown


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


# The timeline


def chart(lock: LockDetails) -> SimpleNamespace | None:
    """Return a timeline with a row for each recent holder, each holder and each waiter."""
    now, rows = lock.now, []
    for event in reversed(lock.events[:DRAWN]):
        held = timeline.span_of_event(event) if timeline.was_held(event) else None
        wait = timeline.wait_of_event(event)
        rows.append(_row(event.holder, clock(event.at, now), held, wait))
    for holding in [each for each in lock.holders if each.timeout][:DRAWN]:
        held, wait = timeline.span_of_holding(holding, now), timeline.wait_of_holding(holding)
        rows.append(_row(holding.holder, pgettext("of a lock", "now"), held, wait))
    for waiter in lock.waiters[: DRAWN // 2]:
        wait = timeline.wait_of_waiter(waiter, now)
        rows.append(_row(waiter.holder, pgettext("of a lock", "waits"), None, wait))
    spans = [span for row in rows for span in (*row.held, *row.waited)]
    if not spans:
        return None
    return timeline.draw(rows, timeline.scale_of(spans, now), waits=BEFORE, mark_all=True)


def _row(holder: Holder, note: str, held: Span | None, wait: Span | None) -> Row:
    spans = [held] if held else [], [wait] if wait else []
    return Row(process_text(holder), who(holder), *spans, note=note)
