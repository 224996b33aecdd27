"""Which holders a page showed, so that no other is released from it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django.conf import settings
from django.core.exceptions import BadRequest, ImproperlyConfigured
from redis.exceptions import RedisError

from ..manager import LockManager, locks
from ..models import ActiveLock
from ..names import check_name
from ..snapshots import Holding, LockInfo
from ..text import holder_text, printable
from .queryset import LockTest

LONGEST_HOLDER = 200
"""Characters of what a form carries of a holder."""


class Seen(NamedTuple):
    """A holder on a page, identified by its fencing token, which is not secret."""

    name: str

    fence_token: int

    using: str = ""
    """The alias of ``CACHES``; empty: ``REDISLOCK_CACHE``."""

    holder: str = ""
    """The text of the holder on the page. It is only shown."""

    @classmethod
    def parse(cls, *texts: str) -> list[Seen]:
        """Read what `dump` wrote and a browser sent back; `BadRequest` if it is anything else."""
        try:
            seen = [cls._of(*one) for text in texts for one in json.loads(text)]
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise BadRequest("seen is not a list of names and fencing tokens") from error
        if not all(one.using in ("", *settings.CACHES) for one in seen):
            raise BadRequest("seen names no alias of CACHES")
        return list({(one.using, one.name, one.fence_token): one for one in seen}.values())

    @classmethod
    def _of(cls, name: Any, fence_token: Any, using: Any = "", holder: Any = "") -> Seen:
        if not isinstance(using, str) or not isinstance(holder, str):
            raise TypeError("using and holder must be str")
        return cls(check_name(name), int(fence_token), using, printable(holder))

    @staticmethod
    def dump(seen: Iterable[Seen]) -> str:
        return json.dumps(list(seen), ensure_ascii=False)

    @property
    def manager(self) -> LockManager:
        return locks.using(self.using or None)

    def lock(self, info: LockInfo | None) -> ActiveLock:
        """Return the lock as a permission method of the admin gets it."""
        return lock_row(self.name, info, self.manager)


def lock_row(name: str, info: LockInfo | None, manager: LockManager) -> ActiveLock:
    """Return a lock that is held or, without `info`, one that may be free."""
    row = ActiveLock.of(info) if info else ActiveLock(name=name)
    row.using = manager.alias
    return row


def seen_of(lock: ActiveLock) -> list[Seen]:
    """Return the holders of a lock, on each of its servers."""
    return [
        Seen(
            lock.name,
            holding.fence_token,
            each.elsewhere,
            holder_text(holding)[:LONGEST_HOLDER],
        )
        for each in (lock, *lock.shares)
        for holding in each.info.holders
    ]


@dataclass(slots=True)
class Look:
    """The present state of the holders on a page."""

    held: list[tuple[Seen, Holding]] = field(default_factory=list)
    """Those who still hold."""

    gone: list[tuple[Seen, LockInfo | None]] = field(default_factory=list)
    """Those who do not, and the lock as it stands now; None if it is free."""

    away: list[tuple[str, Exception]] = field(default_factory=list)
    """The aliases that could not be asked, and why."""

    denied: int = 0
    """How many holders the user may not release. Their names are not shown."""

    has_quorum: bool = False
    """Whether any who still holds has but one server's part of a quorum."""


def look_again(seen: Sequence[Seen], may_release: LockTest | None = None) -> Look:
    """Ask Redis for all holders that were seen.

    Holders that `may_release` rejects are only counted; None means that all may be released.
    """
    look = Look()
    for using in dict.fromkeys(one.using for one in seen):
        there = [one for one in seen if one.using == using]
        try:
            infos = there[0].manager.get_many({one.name for one in there})
        except (RedisError, ImproperlyConfigured) as error:
            look.away.append((there[0].manager.alias, error))
            continue
        for one in there:
            info = infos.get(one.name)
            if may_release and not may_release(one.lock(info)):
                look.denied += 1
            else:
                _sort_out(look, one, info)
    return look


def _sort_out(look: Look, seen: Seen, info: LockInfo | None) -> None:
    holders = info.holders if info else ()
    holding = next((each for each in holders if each.fence_token == seen.fence_token), None)
    if info and holding:
        look.held.append((seen, holding))
        look.has_quorum = look.has_quorum or info.kind == "quorum"
    else:
        look.gone.append((seen, info))
