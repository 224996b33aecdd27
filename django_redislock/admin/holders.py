"""The holders that a page showed, so that a release from it affects no other holder."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from django.core.exceptions import BadRequest, PermissionDenied

from ..manager import LockManager, locks
from ..models import ActiveLock
from ..names import check_name
from ..snapshots import Holding, LockInfo
from .reading import UNREADABLE


class ShownHolder(NamedTuple):
    """A holder on a page, identified by its fencing token, which is not secret."""

    name: str
    fence_token: int

    @classmethod
    def parse(cls, *texts: str) -> list[ShownHolder]:
        """Read the JSON of a form: lists of holders. Raise `BadRequest` if it is invalid."""
        try:
            shown = [
                cls(check_name(name), int(fence_token))
                for text in texts
                for name, fence_token in json.loads(text)
            ]
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise BadRequest("seen is not a list of names and fencing tokens") from error
        return list(dict.fromkeys(shown))


def shown_holders(lock: ActiveLock) -> list[ShownHolder]:
    return [ShownHolder(lock.name, holding.fence_token) for holding in lock.info.holders]


class Held(NamedTuple):
    """A holder that still has its lock."""

    manager: LockManager
    info: LockInfo
    holding: Holding

    @property
    def shown(self) -> ShownHolder:
        return ShownHolder(self.info.name, self.holding.fence_token)


@dataclass(slots=True)
class HolderCheck:
    """The present state of the holders on a page."""

    held: list[Held] = field(default_factory=list)
    # The holders that no longer have the lock, and the fencing token of the first holder now.
    changed: list[tuple[ShownHolder, int | None]] = field(default_factory=list)
    denied: int = 0  # holders that the user may not release. Their names are not shown

    @property
    def has_quorum(self) -> bool:
        """Whether any of the locks is a quorum lock."""
        return "quorum" in {each.info.kind for each in self.held}


def check_holders(
    manager: LockManager,
    shown: Sequence[ShownHolder],
    may_release: Callable[[ActiveLock], bool],
) -> HolderCheck:
    """Read the present state of the holders that a page showed.

    Holders that `may_release` rejects are only counted.

    Raises:
        PermissionDenied: The user may release none of them.
    """
    check = HolderCheck()
    infos = manager.get_many({each.name for each in shown})
    for holder in shown:
        info = infos.get(holder.name)
        holders = info.holders if info else ()
        same = (each for each in holders if each.fence_token == holder.fence_token)
        if not may_release(ActiveLock.of(holder.name, manager.alias, info)):
            check.denied += 1
        elif info and (holding := next(same, None)):
            check.held.append(Held(manager, info, holding))
        else:
            check.changed.append((holder, info.fence_token if info else None))
    if check.denied and not (check.held or check.changed):
        raise PermissionDenied
    return check


def on_all_servers(held: Held, may_release: Callable[[ActiveLock], bool]) -> list[Held]:
    """Return a holder, or the holder of a quorum lock once for each of its servers.

    Such a holder soon takes a single server back. Servers that cannot be read, and those on which
    the user may not release the lock, are left out.
    """
    if held.info.kind != "quorum":
        return [held]
    found = []
    for manager in locks.everywhere():
        with suppress(*UNREADABLE):
            info = manager.get(held.info.name)
            if info and may_release(ActiveLock.of(info.name, manager.alias, info)):
                # A holder has the same lock token on all servers.
                same = (each for each in info.holders if each.token == held.holding.token)
                found += [Held(manager, info, each) for each in same]
    return found
