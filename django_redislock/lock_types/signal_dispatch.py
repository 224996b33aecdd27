"""Send the lock signals, and notify a holder that lost its lock.

`django_redislock.signals` describes the arguments of the signals.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from django.dispatch import Signal

from .. import clock
from ..engine.lease import Lease
from ..engine.operations import Flow, Gather, Op, Sleep, Wait, changed
from ..engine.registry import AnyHold, Hold, holds_of
from ..signals import (
    LOCK_SIGNALS,
    lock_acquired,
    lock_failed,
    lock_lost,
    lock_refused,
    lock_released,
    lock_waiting,
)
from ..tokens import token_of

if TYPE_CHECKING:
    from .acquisition import AnyAcquisition
    from .base import BaseLock

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
        self.fence_token: int | None = None
        self._kind = lock.kind
        self._name = lock.name
        self._since = clock.now()
        self._sent: set[Signal] = set()

    def __repr__(self) -> str:
        return f"<Acquisition of {self._name!r}>"

    def send(self, signal: Signal, lock: "BaseLock", **arguments: Any) -> None:
        """Send a signal, unless it was sent before."""
        if signal in self._sent:
            return
        self._sent.add(signal)
        common = {"using": self.using, "name": self._name, "kind": self._kind}
        send(signal, sender=type(lock), lock=lock, acquisition=self, **common, **arguments)

    def take_seconds(self) -> float:
        """Return the seconds since the last call, or since the acquisition began."""
        before, self._since = self._since, clock.now()
        return self._since - before


def flow_with_signals(acquisition: "AnyAcquisition") -> Flow[AnyHold | None]:
    """Return the flow of an acquisition, which sends signals if any of them has a receiver."""
    for signal in LOCK_SIGNALS:
        if signal.receivers:
            return _send_while(acquisition.lock, acquisition.flow())
    return acquisition.flow()


def _send_while(lock: "BaseLock", flow: Flow[AnyHold | None]) -> Flow[AnyHold | None]:
    context = SignalContext(lock, lock._aliases())
    try:
        send_waiting = partial(context.send, lock_waiting, lock)
        hold = yield from changed(flow, partial(_call_before_wait, send_waiting))
    except BaseException as error:
        context.send(lock_failed, lock, waited=context.take_seconds(), error=error)
        raise
    if hold is None:
        context.send(lock_refused, lock, waited=context.take_seconds())
    elif hold.is_first:
        hold.signals = context
        context.fence_token = token = lock.fence_token
        context.send(lock_acquired, lock, fence_token=token, waited=context.take_seconds())
    return hold


def released(lock: "BaseLock", hold: AnyHold) -> None:
    """Send `lock_released` if a receiver got `lock_acquired`."""
    if context := hold.signals:
        token = context.fence_token
        context.send(lock_released, lock, fence_token=token, held=context.take_seconds())


def report_loss(lease: Lease) -> None:
    """Notify all holders that lost the lock with this lease, once for each lock object."""
    _report(lease, holds_of(lease), is_found_by_holder=False)


def report_found_loss(hold: Hold) -> None:
    """Do so for a hold whose owner finds the loss by itself, and gets an error."""
    _report(hold.lease, [hold, *holds_of(hold.lease)], is_found_by_holder=True)


def _report(lease: Lease, holds: Sequence[Hold], *, is_found_by_holder: bool) -> None:
    # A composite lock that has not all of its parts yet notices the loss of one by itself.
    wholes = [hold.whole for hold in holds if not hold.is_incomplete]
    lost = [whole for whole in wholes if whole.reports_loss()]
    for hold in {id(hold.lock()): hold for hold in reversed(lost)}.values():
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
            token=token_of(lease.token),
            fence_token=lease.fence_token,
        )
        if lock and lock.on_lost == "abort":
            if not is_found_by_holder:
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
