"""Notify the holder that lost its lock."""

import logging
from typing import TYPE_CHECKING

from ..engine.leases import Hold, Lease, holds_of
from ..signals import lock_lost
from . import signal_dispatch

if TYPE_CHECKING:
    from .base import BaseLock

logger = logging.getLogger("django_redislock")


def report_loss(lease: Lease, found_by_holder: bool) -> None:
    """Notify all holders that lost the lock with this lease, once for each lock object."""
    lost = [hold for hold in holds_of(lease) if hold.reports_loss()]
    for hold in {id(hold.lock): hold for hold in reversed(lost)}.values():
        _notify_loss(hold, lease, found_by_holder)


def _notify_loss(hold: Hold, lease: Lease, found_by_holder: bool) -> None:
    lock: BaseLock | None = hold.lock()
    using = hold.signals.using if hold.signals else lease.server.alias
    logger.error(
        "Lock lost: name=%r using=%r fence_token=%s",
        *(lease.keys.name, lease.server.alias, lease.fence_token),
    )
    signal_dispatch.send(
        lock_lost,
        sender=type(lock),
        lock=lock,
        using=using,
        name=lease.keys.name,
        kind=lease.kind,
        acquisition=hold.signals,
        token=lease.token,
        fence_token=lease.fence_token,
    )
    if lock and lock.on_lost == "abort":
        if not found_by_holder:
            hold.abort()
    elif lock and callable(lock.on_lost):
        try:
            lock.on_lost(lock)
        except Exception:
            logger.exception("on_lost callback failed: name=%r", lease.keys.name)
