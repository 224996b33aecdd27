"""The holders that a page showed, so that a release from it affects no other holder.

Also the messages about them, and their entries in Django's log of admin actions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import SimpleNamespace
from typing import Any, NamedTuple

from django.conf import settings
from django.core.exceptions import BadRequest, PermissionDenied
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from ..health import unavailable_text
from ..manager import LockManager, locks
from ..models import ActiveLock
from ..names import check_name
from ..snapshots import Holding
from ..text import age, error_text, holder_and_task_text, printable, short_duration
from .reading import UNREADABLE, Failure


class ShownHolder(NamedTuple):
    """A holder on a page, identified by its fencing token, which is not secret."""

    name: str
    fence_token: int
    using: str = ""  # a cache alias, or empty for REDISLOCK_CACHE

    @classmethod
    def parse(cls, *texts: str) -> list[ShownHolder]:
        """Read the JSON of a form: lists of holders. Raise `BadRequest` if it is invalid."""
        try:
            shown = [
                cls(check_name(name), int(fence_token), *using)
                for text in texts
                for name, fence_token, *using in json.loads(text)
            ]
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise BadRequest("seen is not a list of names and fencing tokens") from error
        if not all(each.using in ("", *settings.CACHES) for each in shown):
            raise BadRequest("seen names no alias of CACHES")
        return list(dict.fromkeys(shown))

    @property
    def manager(self) -> LockManager:
        return locks.using(self.using or None)


def shown_holders(lock: ActiveLock) -> list[ShownHolder]:
    """Return the holders of a lock, on each of its servers."""
    return [
        ShownHolder(lock.name, holding.fence_token, each.elsewhere)
        for each in (lock, *lock.shares)
        for holding in each.info.holders
    ]


@dataclass(slots=True)
class HolderCheck:
    """The present state of the holders on a page."""

    held: list[tuple[ShownHolder, Holding]] = field(default_factory=list)
    # The holders that no longer have the lock, and the fencing token of the first holder now.
    changed: list[tuple[ShownHolder, int | None]] = field(default_factory=list)
    denied: int = 0  # holders that the user may not release. Their names are not shown
    failures: list[Failure] = field(default_factory=list)
    unconfirmed: list[ShownHolder] = field(default_factory=list)  # because of these failures
    has_quorum: bool = False  # whether any of the locks is a quorum lock
    waiters: dict[tuple[str, str], int] = field(default_factory=dict)  # by alias and lock

    @property
    def rows(self) -> list[SimpleNamespace]:
        """One row for each holder. A quorum lock has the same holder on all its servers."""
        rows: dict[str, SimpleNamespace] = {}
        for holder, holding in self.held:
            row = SimpleNamespace(name=holder.name, holding=holding, aliases=[])
            rows.setdefault(holding.stored_token, row).aliases.append(holder.manager.alias)
        return list(rows.values())


def check_holders(
    shown: Sequence[ShownHolder], may_release: Callable[[ActiveLock], bool]
) -> HolderCheck:
    """Read the present state of the holders that a page showed.

    Holders that `may_release` rejects are only counted.

    Raises:
        PermissionDenied: The user may release none of them.
    """
    check = HolderCheck()
    for using in dict.fromkeys(each.using for each in shown):
        there = [each for each in shown if each.using == using]
        manager = there[0].manager
        try:
            infos = manager.get_many({each.name for each in there})
        except UNREADABLE as error:
            check.failures.append((manager.alias, error))
            infos = None
        for holder in there:
            info = infos.get(holder.name) if infos is not None else None
            holders = info.holders if info else ()
            same = (each for each in holders if each.fence_token == holder.fence_token)
            if not may_release(ActiveLock.of(holder.name, manager.alias, info)):
                check.denied += 1
            elif infos is None:
                check.unconfirmed.append(holder)
            elif info and (holding := next(same, None)):
                check.held.append((holder, holding))
                check.has_quorum |= info.kind == "quorum"
                if info.waiters:
                    check.waiters[manager.alias, info.name] = info.waiters
            else:
                check.changed.append((holder, info.fence_token if info else None))
    if check.denied and not (check.held or check.changed or check.failures):
        raise PermissionDenied
    return check


# Texts

REQUESTED = "Force-release requested"
RELEASED = "Force-released"
NOT_RELEASED = "Not released, because the holder no longer had the lock"
REVOKING = "Revocation of the task of the holder requested"
REVOKED = "Revocation of the task of the holder sent"
NOT_REVOKED = "Task of the holder not revoked, because a worker knows it under another name"
LOG_EVENTS = (REQUESTED, RELEASED, NOT_RELEASED, REVOKING, REVOKED, NOT_REVOKED)
MAX_NAMES = 5  # of locks in a message
MAX_QUEUES = 10  # whose first waiter a confirmation names


def log_head(event: str, using: str) -> str:
    """Return the beginning of each entry about an event on a cache alias."""
    where = f" on {printable(using)}" if using not in ("", locks.alias) else ""
    return f"{event}{where}. "


def log_text(holder: ShownHolder, holding: Holding, event: str, result: str = "") -> str:
    """Return the text of an entry in the log of admin actions, which is always in English."""
    return (
        f"{log_head(event, holder.using)}Held by {holder_and_task_text(holding)}"
        f" for {short_duration(age(holding))}; fencing token {holding.fence_token}{result}."
    )


def failure_text(alias: str, error: BaseException, *, is_release: bool = False) -> str:
    text = _("The locks of “%(alias)s” cannot be read: %(error)s")
    if is_release:
        text = _("A release on “%(alias)s” failed: %(error)s")
    if isinstance(error, AuthenticationError | NoPermissionError):  # the server's text is unclear
        error = RedisError(unavailable_text(alias, error))
    # A mistake in REDISLOCK_CACHE can be an address with a password.
    return text % {"alias": error_text(alias), "error": error_text(error)}


def left_out_texts(check: HolderCheck) -> list[str]:
    """Return why holders are left out of a release."""
    texts = [failure_text(*each) for each in check.failures]
    if check.denied:  # their names are not shown
        text = ngettext(
            "%(count)d holder was left out, because you may not release its lock.",
            "%(count)d holders were left out, because you may not release their locks.",
            check.denied,
        )
        texts.append(text % {"count": check.denied})
    return texts


def _facts(holders: Iterable[ShownHolder]) -> dict[str, Any]:
    """Return the number of locks, and the names of the first."""
    every = [*dict.fromkeys(printable(each.name) for each in holders)]
    names = ", ".join(every[:MAX_NAMES])
    if more := len(every[MAX_NAMES:]):
        names = _("%(names)s and %(count)d more") % {"names": names, "count": more}
    return {"count": len(every), "names": names}


def queue_texts(check: HolderCheck) -> list[str]:
    """Return for some of the locks who gets the lock next, and how many wait."""
    texts = []
    for (alias, name), count in islice(check.waiters.items(), MAX_QUEUES):
        first = next(iter(locks.using(alias).queue(name, 1)), None)
        if first is None:  # it has left the queue
            continue
        text = ngettext(
            "“%(name)s”: next is %(waiter)s, the only waiter.",
            "“%(name)s”: next is %(waiter)s, the first of %(count)d waiters.",
            count,
        )
        values = {"name": printable(name), "waiter": holder_and_task_text(first), "count": count}
        texts.append(text % values)
    if more := max(len(check.waiters) - MAX_QUEUES, 0):
        text = ngettext(
            "%(count)d more lock has waiters.", "%(count)d more locks have waiters.", more
        )
        texts.append(text % {"count": more})
    return texts or [_("Nobody waits.")]


def skipped_text(changed: Iterable[ShownHolder]) -> str:
    return _("Skipped (changed after you opened the page): %(names)s") % _facts(changed)


def unconfirmed_text(unconfirmed: Iterable[ShownHolder]) -> str:
    return _("Release not confirmed: %(names)s") % _facts(unconfirmed)


def unlogged_text(rest: Iterable[ShownHolder], error: Exception) -> str:
    text = _("Not released, because the admin log cannot be written (%(error)s): %(names)s")
    return text % (_facts(rest) | {"error": type(error).__name__})


def released_text(released: Iterable[ShownHolder]) -> str:
    facts = _facts(released)
    if not facts["count"]:
        return _("Nothing was released.")
    if facts["count"] == 1:
        return _("Released “%(name)s”.") % {"name": facts["names"]}
    text = ngettext("Released %(count)d lock.", "Released %(count)d locks.", facts["count"])
    return text % facts
