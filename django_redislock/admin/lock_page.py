"""The page of one lock: state, holders, waiters and history."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from django.http import HttpRequest

from ..advice import advice, deadlock_text
from ..conf import conf
from ..lock_state import current_holds
from ..manager import LockManager, locks
from ..models import ActiveLock
from ..sentences import holder_facts
from ..snapshots import Event, LockInfo, Waiter
from ..text import clock_text, read_at
from ..waits import chain_of
from .holders import shown_holders
from .queue_entries import MAX_WAITERS
from .reading import Alias, aliases_of, ask_all
from .tasks import revoke_fields
from .timeline import timeline, was_held

MAX_HOLDERS = 50  # that are shown
MAX_EVENTS = 50
MAX_DRAWN = 20  # holders and events. Of waiters it is half of that


@dataclass(frozen=True, slots=True)
class LockDetails:
    """The state, the waiters and the history of one lock on one cache alias."""

    alias: str
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
    return LockDetails(manager.alias, info, waiters, events, now)


def find_lock(
    request: HttpRequest, manager: LockManager, name: str, is_visible: Callable[[ActiveLock], bool]
) -> list[LockDetails]:
    """Read a lock on all aliases that can be read. The alias of the page comes first.

    Without an alias in the address, as in a link of Django's log of actions, this is the first
    alias that has the lock, or had it, and on which it is visible. If the first alias cannot be
    read, this raises the error: another alias may have a lock of the same name.
    """
    aliases = sorted(aliases_of(request), key=lambda each: each.name != manager.alias)
    if aliases[0].name != manager.alias:  # of several aliases of one server, one was asked
        aliases.insert(0, Alias(manager.alias, manager))
    aliases[1:] = [
        each for each in aliases[1:] if is_visible(ActiveLock.of(name, each.name, None))
    ]
    first, *answers = ask_all(aliases, lambda manager: read_lock(manager, name))
    if isinstance(first, BaseException):
        raise first
    found = [first, *(each for each in answers if isinstance(each, LockDetails))]
    if "using" in request.GET:
        return found
    return sorted(found, key=lambda each: not (each.info or each.events))


def context(lock: LockDetails, row: ActiveLock, may_release: bool) -> dict[str, Any]:
    """Return what the template of the page shows."""
    shown = shown_holders(row) if lock.info else []
    holders = lock.info.holders if lock.info else ()
    clock = partial(clock_text, now=lock.now)
    return {
        "row": row,
        "several_aliases": len(locks.everywhere()) > 1,
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


def waits(lock: LockDetails, is_visible: Callable[[ActiveLock], bool]) -> dict[str, Any]:
    """Return who waits for whom, for the template."""
    chain, deadlock = chain_of(
        locks.using(lock.alias),
        lock.info,
        lambda info: is_visible(ActiveLock.of(info.name, lock.alias, info)),
    )
    return {"chain": chain, "deadlock": deadlock_text(len(deadlock))}


def add_shares(
    row: ActiveLock, details: LockDetails, others: Sequence[LockDetails]
) -> LockDetails:
    """Add the other servers of a quorum lock to its row.

    Returns:
        The details with the waiters, which are all on one of the servers.
    """
    if not row.primary or row.info.kind != "quorum":
        return details
    for each in others:
        if each.info and row.primary.token in [share.token for share in each.info.holders]:
            row.add_share(ActiveLock.of(row.name, each.alias, each.info))
            if len(each.waiters) > len(details.waiters):
                details = replace(details, waiters=each.waiters)
    return replace(details, info=row.info)
