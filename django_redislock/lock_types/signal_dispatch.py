"""What is told of a lock's life to those who listen; see `signals` for what they are promised."""

import logging
from functools import partial
from inspect import GEN_CLOSED, getgeneratorstate
from typing import TYPE_CHECKING, Any, TypeVar

from django.dispatch import Signal

from .. import clock
from ..engine.holds import Hold
from ..engine.operations import BlockingPop, Flow, Gather, Op, Sleep
from ..signals import (
    lock_acquired,
    lock_failed,
    lock_lost,
    lock_refused,
    lock_released,
    lock_waiting,
)

if TYPE_CHECKING:
    from .base import BaseLock
    from .core import Core

T = TypeVar("T")

logger = logging.getLogger("django_redislock")


def anybody_listens() -> bool:
    return bool(
        lock_acquired.receivers
        or lock_released.receivers
        or lock_refused.receivers
        or lock_failed.receivers
        or lock_waiting.receivers
        or lock_lost.receivers
    )


def tell(signal: Signal, **about: Any) -> None:
    try:
        signal.send_robust(**about)
    except Exception:  # Django's own: a coroutine function listens, and an event loop is running
        logger.exception("Signal not sent: name=%r", about["name"])


class Acquisition:
    """One acquisition that somebody listens to, until its lock is released."""

    def __init__(self, lock: "Core", using: str) -> None:
        self.using = using
        self._kind = lock.kind
        self._name = lock.name
        self._since = clock.now()
        self._waits = self._over = False
        self._fence_token: int | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._name!r}>"

    def waiting(self, lock: "Core") -> None:
        """Tell it once."""
        if not self._waits:
            self._waits = True
            self._tell(lock_waiting, lock)

    def acquired(self, lock: "BaseLock") -> None:
        waited = self._seconds()
        self._since, self._fence_token = clock.now(), lock.fence_token
        self._tell(lock_acquired, lock, fence_token=self._fence_token, waited=waited)

    def refused(self, lock: "Core") -> None:
        self._tell(lock_refused, lock, waited=self._seconds())

    def failed(self, lock: "Core", error: BaseException) -> None:
        self._tell(lock_failed, lock, waited=self._seconds(), error=error)

    def released(self, lock: "Core") -> None:
        """Tell it once."""
        if not self._over:
            self._over = True
            self._tell(lock_released, lock, fence_token=self._fence_token, held=self._seconds())

    def _seconds(self) -> float:
        return clock.now() - self._since

    def _tell(self, signal: Signal, lock: "Core", **about: Any) -> None:
        facts = {"using": self.using, "name": self._name, "kind": self._kind, **about}
        tell(signal, sender=type(lock), lock=lock, acquisition=self, **facts)


def told(lock: "BaseLock", using: str, flow: Flow[Hold | None]) -> Flow[Hold | None]:
    """The flow that acquires a lock, and what is told of it."""
    acquisition = Acquisition(lock, using)
    try:
        hold = yield from _watched(flow, partial(acquisition.waiting, lock))
    except BaseException as error:
        acquisition.failed(lock, error)
        raise
    if hold is None:
        acquisition.refused(lock)
    elif hold.is_first:
        hold.acquisition = acquisition
        acquisition.acquired(lock)
    return hold


def released(lock: "Core", hold: Hold) -> None:
    if hold.acquisition:
        hold.acquisition.released(lock)


def _watched(flow: Flow[T], waits: "partial[None]") -> Flow[T]:
    """The same flow; `waits` is called whenever it waits. What is raised here, by an interrupt
    too, is raised inside the flow, which leaves nothing behind then."""
    go_on = partial(flow.send, None)
    while True:
        try:
            answer = yield _seen(go_on(), waits)
            go_on = partial(flow.send, answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except BaseException as trouble:
            if getgeneratorstate(flow) == GEN_CLOSED:  # it is the flow's own
                del go_on  # it has the error, which would keep this frame alive
                raise
            go_on = partial(flow.throw, trouble)


def _seen(op: Op, waits: "partial[None]") -> Op:
    match op:
        case BlockingPop() | Sleep():
            waits()
        case Gather([(server, flow)]):  # several are asked in other threads, and not for long
            return Gather(((server, _watched(flow, waits)),))
    return op
