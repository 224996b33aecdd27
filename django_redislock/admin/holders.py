"""The holders that a page showed, so that a release from it affects no other holder.

Also the messages about them, and their entries in Django's log of admin actions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import NamedTuple

from django.conf import settings
from django.core.exceptions import BadRequest, PermissionDenied

from .. import sentences
from ..manager import LockManager, locks
from ..models import ActiveLock
from ..names import check_name
from ..snapshots import Holding
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


def names_of(holders: Iterable[ShownHolder]) -> list[str]:
    return [each.name for each in holders]


def left_out_texts(check: HolderCheck) -> list[str]:
    """Return why holders are left out of a release."""
    texts = [sentences.failure_text(*each) for each in check.failures]
    return [*texts, *filter(None, [sentences.denied_text(check.denied)])]
