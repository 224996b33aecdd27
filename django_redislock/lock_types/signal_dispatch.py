"""Send the lock signals, and notify a holder that lost its lock.

`django_redislock.signals` describes the arguments of the signals.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from django.dispatch import Signal

from .. import clock
from ..engine.leases import Hold, Lease, holds_of
from ..engine.operations import Flow, Gather, Op, Sleep, Wait, changed
from ..signals import (
    lock_acquired,
    lock_failed,
    lock_lost,
    lock_refused,
    lock_released,
    lock_waiting,
)

if TYPE_CHECKING:
    from .base import AcquireCall, BaseLock

logger = logging.getLogger("django_redislock")


def send(signal: Signal, **arguments: Any) -> None:
    """Send a signal, and log an error instead of raising it."""
    try:
        signal.send_robust(**arguments)
    except Exception:  # a coroutine function is a receiver, and an event loop is running
        logger.exception("Signal not sent: name=%r", arguments["name"])


class SignalContext:
    """The context of the signals of one acquisition, until the lock is released."""

    def __init__(self, lock: "BaseLock", using: str) -> None:
        self.using = using
        self._kind = lock.kind
        self._name = lock.name
        self._since = clock.now()
        self._has_waited = self._is_released = False
        self._fence_token: int | None = None

    def __repr__(self) -> str:
        return f"<Acquisition of {self._name!r}>"

    def waiting(self, lock: "BaseLock") -> None:
        """Send `lock_waiting` once."""
        if not self._has_waited:
            self._has_waited = True
            self._send(lock_waiting, lock)

    def acquired(self, lock: "BaseLock") -> None:
        waited = self._seconds()
        self._since, self._fence_token = clock.now(), lock.fence_token
        self._send(lock_acquired, lock, fence_token=self._fence_token, waited=waited)

    def refused(self, lock: "BaseLock") -> None:
        self._send(lock_refused, lock, waited=self._seconds())

    def failed(self, lock: "BaseLock", error: BaseException) -> None:
        self._send(lock_failed, lock, waited=self._seconds(), error=error)

    def released(self, lock: "BaseLock") -> None:
        """Send `lock_released` once."""
        if not self._is_released:
            self._is_released = True
            held = self._seconds()
            self._send(lock_released, lock, fence_token=self._fence_token, held=held)

    def _seconds(self) -> float:
        return clock.now() - self._since

    def _send(self, signal: Signal, lock: "BaseLock", **arguments: Any) -> None:
        common = {"using": self.using, "name": self._name, "kind": self._kind}
        send(signal, sender=type(lock), lock=lock, acquisition=self, **common, **arguments)


def send_while(
    lock: "BaseLock", call: "AcquireCall", flow: Flow[Hold | None]
) -> Flow[Hold | None]:
    """Return the flow of an acquisition, with signals."""
    using = ", ".join(dict.fromkeys(server.alias for server, _ in call.targets))
    context = SignalContext(lock, using)
    try:
        before_wait = partial(_call_before_wait, partial(context.waiting, lock))
        hold = yield from changed(flow, before_wait)
    except BaseException as error:
        context.failed(lock, error)
        raise
    if hold is None:
        context.refused(lock)
    elif hold.is_first:
        hold.signals = context
        context.acquired(lock)
    return hold


def released(lock: "BaseLock", hold: Hold) -> None:
    """Send `lock_released` if a receiver got `lock_acquired`."""
    if hold.signals:
        hold.signals.released(lock)


def report_loss(lease: Lease, found_by_holder: bool) -> None:
    """Notify all holders that lost the lock with this lease, once for each lock object."""
    lost = [hold for hold in holds_of(lease) if hold.reports_loss()]
    for hold in {id(hold.lock): hold for hold in reversed(lost)}.values():
        lock: BaseLock | None = hold.lock()
        logger.error(
            "Lock lost: name=%r using=%r fence_token=%s",
            *(lease.keys.name, lease.server.alias, lease.fence_token),
        )
        send(
            lock_lost,
            sender=type(lock),
            lock=lock,
            using=hold.signals.using if hold.signals else lease.server.alias,
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


def _call_before_wait(waits: Callable[[], None], operation: Op) -> Op:
    match operation:
        case Wait() | Sleep():
            waits()
        case Gather([(server, flow)]):  # several flows run in other threads, and do not wait
            return Gather(((server, changed(flow, partial(_call_before_wait, waits))),))
    return operation
