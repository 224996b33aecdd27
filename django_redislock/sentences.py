"""Sentences and other texts that the admin and the terminal show, apart from `advice`.

The admin shows them in the language of the user, and `manage.py locks` in English.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext, pgettext_lazy
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from .health import unavailable_text
from .lock_state import (
    COOLDOWN,
    HANDOVER,
    HELD,
    QUEUED,
    STALE,
    QueuedTask,
    is_lengthened,
    is_queued,
    primary_holder,
    queued_task,
    state_of,
    state_of_holding,
    was_extended,
    was_renewed,
)
from .manager import LockManager, locks
from .snapshots import Event, Holding, LockInfo, Waiter
from .text import (
    age,
    error_text,
    holder_and_task_text,
    holder_text,
    metadata_text,
    printable,
    short_duration,
    task_text,
)

# Locks and holds


def headline(info: LockInfo) -> str:
    """Return the state of a lock and, if there is only one, who holds it."""
    text, held = f"{printable(info.name)} ({info.kind}): {state_of(info).label}", info.first
    if held is None or len(info.holders) > 1 or not held.timeout:
        return text
    who, how_long = holder_text(held), short_duration(age(held))
    if state_of(info) is QUEUED:
        return f"{text} for {how_long}, sent by {who}"
    return f"{text}, {who} for {how_long}"


def renewal_text(holding: Holding) -> str:
    """Return in a few words whether the lease is renewed."""
    if holding.unconfirmed:
        return "handed over, not confirmed yet"
    if was_renewed(holding):
        return f"renewed {short_duration(holding.since_renewal)} ago"
    if holding.renewed:
        return "not renewed yet"
    if is_lengthened(holding):
        return "extended"
    if holding.renews_later:
        return "renewed before" if was_extended(holding) else "renewal starts later"
    return "not renewed"


ROLES = {
    QUEUED: (pgettext_lazy("of a lock", "Sender"), pgettext_lazy("of a lock", "Since")),
    COOLDOWN: (pgettext_lazy("of a lock", "Last holder"), pgettext_lazy("of a lock", "Acquired")),
}
"""The labels of a holder that does not work under the lock, and of the time of its acquisition."""

HOLDER = pgettext_lazy("of a lock", "Holder"), pgettext_lazy("of a lock", "Held since")
"""The same labels of any other holder."""


def holder_facts(
    info: LockInfo, holding: Holding, clock: Callable[[datetime], str]
) -> dict[str, str]:
    """Return what a page and the terminal show of a holder, by label. The holder comes first.

    Args:
        info: The lock.
        holding: The holder.
        clock: Returns a time as people read it.
    """
    state = state_of_holding(holding)
    role, since = ROLES.get(state, HOLDER)
    sent = queued_task(holding) or QueuedTask(None, "")
    ends = _("Cooldown ends") if state is COOLDOWN else _("Lease ends")
    values = {
        "acquired": clock(holding.acquired_at),
        "age": short_duration(age(holding)),
        "ends": clock(holding.expires_at),
        "left": short_duration(holding.ttl),
        "renewed": short_duration(holding.since_renewal),
    }
    facts: dict[Any, str] = {
        role: holder_text(holding),
        pgettext("of a lock", "Task"): task_text(holding),
        since: _("%(acquired)s, %(age)s ago") % values,
        _("Starts at"): clock(sent.eta) if sent.eta else "",
        _("Broker queue"): printable(sent.broker_queue),
        _("Waited before"): short_duration(holding.waited) if holding.waited else "",
        pgettext("of a lock", "Lease"): short_duration(holding.timeout) if holding.timeout else "",
        pgettext("of a lock", "Renewed"): _("%(renewed)s ago") % values
        if was_renewed(holding)
        else "",
        ends: _("%(ends)s, in %(left)s") % values,
        _("Fencing token"): str(holding.fence_token),
        **share(info, holding),
    }
    return {str(label): text for label, text in facts.items() if text}


def share(info: LockInfo, record: Holding | Waiter) -> dict[str, str]:
    """Return by label what a holder or waiter takes of a lock that can have several holders."""
    if info.kind == "readwrite":
        reads, writes = pgettext("of a lock", "reads"), pgettext("of a lock", "writes")
        return {pgettext("of a lock", "Access"): writes if record.weight > 1 else reads}
    if info.capacity > 1:
        return {pgettext("of a lock", "Weight"): f"{record.weight}/{info.capacity}"}
    return {}


SCHEDULE = ("eta", "broker_queue")
"""The only metadata of a queue lock that tell a person something."""


def record_metadata_text(record: Holding | Waiter | Event, indent: int | None = None) -> str:
    """Return the metadata as `metadata_text()` does, without what the package notes for itself.

    All metadata of a queue lock are such notes. `holder_facts()` has its schedule.
    """
    shown: Mapping[str, Any] = record.metadata
    if isinstance(record, Holding):
        shown = {} if is_queued(record) else shown
    elif shown.get("queued") is True and record.holder.task_id:
        shown = {key: shown[key] for key in SCHEDULE if key in shown}
    return metadata_text(shown, indent)


def hold_text(name: str, holding: Holding) -> str:
    """Return the lock's name and, in parentheses, the holder and the last renewal."""
    token = f"fencing token {holding.fence_token}"
    if not holding.timeout:
        left = short_duration(holding.ttl)
        return f"{printable(name)} ({token}, released; in cooldown for {left})"
    state = state_of_holding(holding)
    verb = "queued" if state is QUEUED else "held"
    held = f"{verb} by {holder_and_task_text(holding)} for {short_duration(age(holding))}"
    warning = "STALE, " if state is STALE else ""
    return f"{printable(name)} ({token}, {held}; {warning}{renewal_text(holding)})"


def held_text(manager: LockManager, name: str) -> str:
    """Return the lock's name and, if there is one now, its holder."""
    info = manager.get(name)
    held = primary_holder(info) if info else None
    return hold_text(name, held) if held else printable(name)


def forced_text(event: Event) -> str:
    """Return who force-released the lock, and why, as far as that is known."""
    return ": ".join(filter(None, (event.by, event.reason)))


# What to do next

RELEASE_IF = {QUEUED: "If the message is gone", COOLDOWN: "To end the cooldown now"}
"""When to release a lock, if not because its process is gone."""


def release_steps(manager: LockManager, info: LockInfo) -> list[str]:
    """Return when to release the lock, and the command. Empty if a release is not right."""
    state, has_several = state_of(info), len(info.holders) > 1
    # Of several holders, the others may be running.
    is_right = state in (STALE, COOLDOWN) if has_several else state not in (HELD, HANDOVER)
    if not (is_right and info.name.isprintable()):  # nobody could type the name
        return []
    arguments = ["manage.py", "locks", "release"]
    if manager.alias != locks.alias:
        arguments.append(f"--using={manager.alias}")
    if has_several and state is STALE:
        arguments.append("--stale")
    if info.name.startswith("-"):
        arguments.append("--")
    condition = RELEASE_IF.get(state, "If the process is gone")
    step = f"{condition}, run: {shlex.join([*arguments, info.name])}"
    return [str(STALE.release), step] if state is STALE else [step]


# Entries in the log of admin actions, always in English

REQUESTED = "Force-release requested"
RELEASED = "Force-released"
NOT_RELEASED = "Not released, because the holder no longer had the lock"
REVOKING = "Revocation of the task of the holder requested"
REVOKED = "Revocation of the task of the holder sent"
NOT_REVOKED = "Task of the holder not revoked, because a worker knows it under another name"
LOG_EVENTS = (REQUESTED, RELEASED, NOT_RELEASED, REVOKING, REVOKED, NOT_REVOKED)  # in its log


def log_head(event: str, using: str) -> str:
    """Return the beginning of each entry about an event on a cache alias."""
    where = f" on {printable(using)}" if using != locks.alias else ""
    return f"{event}{where}. "


def log_text(using: str, holding: Holding, event: str, result: str = "") -> str:
    """Return the text of an entry in the log of admin actions, which is always in English."""
    return (
        f"{log_head(event, using)}Held by {holder_and_task_text(holding)}"
        f" for {short_duration(age(holding))}; fencing token {holding.fence_token}{result}."
    )


# Releases

MAX_NAMES = 5  # of locks in a message
MAX_QUEUES = 10  # whose first waiter a confirmation names


def failure_text(alias: str, error: BaseException, *, is_release: bool = False) -> str:
    text = _("The locks of “%(alias)s” cannot be read: %(error)s")
    if is_release:
        text = _("A release on “%(alias)s” failed: %(error)s")
    if isinstance(error, AuthenticationError | NoPermissionError):  # the server's text is unclear
        error = RedisError(unavailable_text(alias, error))
    # A mistake in REDISLOCK_CACHE can be an address with a password.
    return text % {"alias": error_text(alias), "error": error_text(error)}


def denied_text(count: int) -> str:
    """Return how many holders are left out of a release. Their names are not shown."""
    text = ngettext(
        "%(count)d holder was left out, because you may not release its lock.",
        "%(count)d holders were left out, because you may not release their locks.",
        count,
    )
    return text % {"count": count} if count else ""


def _facts(names: Iterable[str]) -> dict[str, Any]:
    """Return the number of locks, and the names of the first."""
    every = [*dict.fromkeys(map(printable, names))]
    shown = ", ".join(every[:MAX_NAMES])
    if more := len(every[MAX_NAMES:]):
        shown = _("%(names)s and %(count)d more") % {"names": shown, "count": more}
    return {"count": len(every), "names": shown}


def queue_texts(manager: LockManager, infos: Iterable[LockInfo]) -> list[str]:
    """Return for some of the locks who gets the lock next, and how many wait. Empty if nobody
    does."""
    texts = []
    waiters = {info.name: info.waiters for info in infos if info.waiters}
    for name, count in islice(waiters.items(), MAX_QUEUES):
        first = next(iter(manager.queue(name, 1)), None)
        if first is None:  # it has left the queue
            continue
        text = ngettext(
            "“%(name)s”: next is %(waiter)s, the only waiter.",
            "“%(name)s”: next is %(waiter)s, the first of %(count)d waiters.",
            count,
        )
        values = {"name": printable(name), "waiter": holder_and_task_text(first), "count": count}
        texts.append(text % values)
    if more := max(len(waiters) - MAX_QUEUES, 0):
        text = ngettext(
            "%(count)d more lock has waiters.", "%(count)d more locks have waiters.", more
        )
        texts.append(text % {"count": more})
    return texts


def skipped_text(changed: Iterable[str]) -> str:
    return _("Skipped (changed after you opened the page): %(names)s") % _facts(changed)


def unconfirmed_text(unconfirmed: Iterable[str]) -> str:
    return _("Release not confirmed: %(names)s") % _facts(unconfirmed)


def unlogged_text(rest: Iterable[str], error: Exception) -> str:
    text = _("Not released, because the admin log cannot be written (%(error)s): %(names)s")
    return text % (_facts(rest) | {"error": type(error).__name__})


def released_text(released: Iterable[str]) -> str:
    facts = _facts(released)
    if not facts["count"]:
        return _("Nothing was released.")
    if facts["count"] == 1:
        return _("Released “%(name)s”.") % {"name": facts["names"]}
    text = ngettext("Released %(count)d lock.", "Released %(count)d locks.", facts["count"])
    return text % facts
