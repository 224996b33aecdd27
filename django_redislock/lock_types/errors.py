"""The errors of locks."""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..engine.lease import Lease
from ..exceptions import LOSS, LockError, LockLost, LockNotAcquired, LockNotOwnedError
from ..identity import Owner
from ..snapshots import Holding, LockInfo
from ..text import age, printable, short_duration

if TYPE_CHECKING:
    from .base import BaseLock


def lock_lost_error(name: str, action: str) -> LockLost:
    return LockLost(
        f"Cannot {action} lock {name!r}: it was lost while it was held ({LOSS}). Another holder "
        "may be running.",
        lock_name=name,
    )


def lock_not_owned_error(name: str, action: str) -> LockNotOwnedError:
    return LockNotOwnedError(
        f"Cannot {action} lock {name!r}: this thread or task does not hold it", lock_name=name
    )


def already_held_error(
    lock: "BaseLock", name: str, owner: Owner, own: Iterable[Lease]
) -> LockError:
    holder = "task" if isinstance(owner, asyncio.Task) else "thread"
    advice = "It would wait for itself."
    if not lock.reentrant and any(lease.weight >= lock.weight for lease in own):
        advice = "Use reentrant=True to acquire it again."
    return LockError(f"Lock {name!r} is already held by this {holder}. {advice}", lock_name=name)


def not_acquired_error(lock: "BaseLock", info: LockInfo | None) -> LockNotAcquired:
    """Return the error of a ``with`` statement. `info` is about the lock that is in the way."""
    # Without a limit, acquire() does not return before it has the lock.
    limit = lock.blocking_timeout if lock.blocking else None
    when = "without waiting (blocking=False)" if limit is None else f"within {limit:g} s"
    name = info.name if info else lock.name
    reason = f": {_reason(info, info.holders[0])}" if info else ""
    text = f"Lock {name!r} was not acquired {when}{reason}"
    error = LockNotAcquired(text, lock_name=name)
    if info:
        error.holder = info.holder
        error.expires_in = info.ttl
    return error


def _reason(info: LockInfo, first: Holding) -> str:
    if info.state == "cooldown":
        return f"it is in cooldown for {short_duration(first.ttl)}"
    who = f"{first.holder.host}:{first.holder.pid}" if first.holder.host else "an unknown holder"
    if first.holder.task_name:
        who += f" ({first.holder.task_name})"
    more = f" and {len(info.holders) - 1} more" if len(info.holders) > 1 else ""
    waiting = f", {info.waiters} waiting" if info.waiters else ""
    return f"held by {printable(who)}{more} for {short_duration(age(first))}{waiting}"
