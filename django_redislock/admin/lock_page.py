"""The page of one lock: state, holders, waiters and history."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ..advice import advice, deadlock_text
from ..conf import conf
from ..lock_state import current_holds
from ..manager import LockManager
from ..models import ActiveLock
from ..sentences import holder_facts
from ..snapshots import Event, LockInfo, Waiter
from ..text import clock_text, read_at
from ..waits import chain_of
from .holders import shown_holders
from .queue_entries import MAX_WAITERS
from .reading import known_aliases
from .tasks import revoke_fields
from .timeline import timeline, was_held

MAX_HOLDERS = 50  # that are shown
MAX_EVENTS = 50
MAX_DRAWN = 20  # holders and events. Of waiters it is half of that


@dataclass(frozen=True, slots=True)
class LockDetails:
    """The state, the waiters and the history of one lock on one cache alias."""

    info: LockInfo | None
    waiters: tuple[Waiter, ...]
    events: tuple[Event, ...]
    now: datetime


def read_lock(manager: LockManager, name: str) -> LockDetails:
    """Ask Redis for a lock, its latest events and its first waiters."""
    info = manager.get(name)
    events = manager.history(name, MAX_EVENTS) if conf.history else ()
    waiters = manager.queue(name, MAX_WAITERS) if info and info.waiters else ()
    if info and info.first:
        now = read_at(info.first)
    else:
        now = max([datetime.now(UTC), *(event.at for event in events)])
    return LockDetails(info, waiters, events, now)


def context(lock: LockDetails, row: ActiveLock, may_release: bool) -> dict[str, Any]:
    """Return what the template of the page shows."""
    shown = shown_holders(row) if lock.info else []
    holders = lock.info.holders if lock.info else ()
    clock = partial(clock_text, now=lock.now)
    return {
        "row": row,
        "aliases": known_aliases(),
        "lock": lock.info,
        "now": lock.now,
        "verdict": advice(lock.info, clock),
        "cards": [
            (holding, holder_facts(row.info, holding, clock), revoke_fields(holder, holding))
            for holding, holder in zip(holders[:MAX_HOLDERS], shown, strict=False)
        ],
        "more_holders": len(holders[MAX_HOLDERS:]),
        "waiters": lock.waiters,
        "may_release": may_release,
        "holds": [each for each in lock.events if was_held(each)],
        "refusals": [each for each in lock.events if not was_held(each)],
        "chart": timeline(
            lock.events[:MAX_DRAWN],
            current_holds(lock.info)[:MAX_DRAWN],
            lock.waiters[: MAX_DRAWN // 2],
            lock.now,
        ),
        "keeps_history": conf.history,
        "seen": json.dumps(shown),
    }


def waits(
    manager: LockManager, lock: LockDetails, is_visible: Callable[[ActiveLock], bool]
) -> dict[str, Any]:
    """Return who waits for whom, for the template."""
    chain, deadlock = chain_of(
        manager,
        lock.info,
        lambda info: is_visible(ActiveLock.of(info.name, manager.alias, info)),
    )
    return {"chain": chain, "deadlock": deadlock_text(len(deadlock))}
