"""What keeps leases running, and tells when one is lost.

One thread for all locks of a process; for locks held by asyncio tasks, one task
an event loop. Leases of one server that are due at about the same time go together.
"""

import asyncio
import logging
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from .. import clock
from ..connection import Server
from . import flows
from .drivers import arun, run
from .lease import Lease
from .ops import Flow

logger = logging.getLogger("django_redislock")

LONGEST_ROUND = 2.0
"""Seconds to wait for the answer to a round of renewals: a server that hangs must not
keep the locks of another from being renewed."""

RETRY = 1.0
"""Seconds until a failed renewal is tried again, or a tenth of the lease if that is less."""

GIVE_BACK = 10.0
"""Seconds for which a lock is given back that Redis may have granted without our knowing."""


@dataclass(frozen=True, slots=True)
class Errand:
    """Something to do at a server, and what to do with the outcome."""

    server: Server
    flow: Flow[Any]
    done: Callable[[Any], None]
    failed: Callable[[Exception], None]


class Book:
    """The leases that one renewer looks after, and what becomes of them.

    They are held weakly: a lock that nobody has any more, so that nobody can
    release it, is left to run out.
    """

    def __init__(self) -> None:
        self._leases: WeakValueDictionary[int, Lease] = WeakValueDictionary()
        self._returns: dict[int, Lease] = {}
        self._next = float("inf")

    def wake(self) -> None:
        raise NotImplementedError

    def add(self, lease: Lease) -> None:
        self._leases[id(lease)] = lease
        if lease.due < self._next:
            self.wake()

    def remove(self, lease: Lease) -> None:
        self._leases.pop(id(lease), None)

    def give_back(self, lease: Lease) -> None:
        """Release what Redis may hold for `lease`, as soon as it answers again."""
        lease.deadline = clock.now() + min(lease.seconds, GIVE_BACK)
        lease.due = clock.now()
        self._returns[id(lease)] = lease
        self.wake()

    def seconds_to_next(self) -> float | None:
        self._next = float("inf")  # so that whatever is added from here on wakes the renewer
        dues = [lease.due for lease in (*self._current(), *self._returns.values())]
        if not dues:
            return None
        self._next = min(dues)
        return max(0.0, self._next - clock.now())

    def errands(self) -> Iterator[Errand]:
        for server, leases in self._to_renew().items():
            done = partial(self._judge, clock.now())
            limit = max(0.05, min(LONGEST_ROUND, *(_left(lease) / 2 for lease in leases)))
            renewal = flows.renew_all(leases, limit)
            yield Errand(server, renewal, done, partial(self._put_off, leases))
        for lease in list(self._returns.values()):
            release = flows.release(lease.keys, lease.token)
            returned = partial(self._returned, lease)
            yield Errand(lease.server, release, returned, lambda error: None)

    def tell_lost(self) -> None:
        for lease in self._current():
            if lease.lost:
                self._lose(lease)

    def _current(self) -> list[Lease]:
        # One step for other threads, which add and remove meanwhile.
        references = list(self._leases.valuerefs())
        return [lease for reference in references if (lease := reference())]

    def _to_renew(self) -> dict[Server, list[Lease]]:
        now = clock.now()
        due: dict[Server, list[Lease]] = defaultdict(list)
        for lease in self._current():
            if lease.lost or lease.due - lease.seconds / 10 > now:
                continue
            if lease.wants_renewal:
                due[lease.server].append(lease)
            else:
                lease.due = lease.deadline
        return due

    def _judge(self, sent: float, verdicts: Sequence[tuple[Lease, float]]) -> None:
        for lease, left in verdicts:
            if left > 0:
                lease.keep(sent + left)
            elif id(lease) in self._leases:  # else it was released while the answer was under way
                self._lose(lease)

    def _put_off(self, leases: Sequence[Lease], error: Exception) -> None:
        logger.warning("Renewal of %d lock(s) failed, to be tried again: %s", len(leases), error)
        for lease in leases:
            lease.due = clock.now() + min(RETRY, lease.seconds / 10)

    def _lose(self, lease: Lease) -> None:
        self.remove(lease)
        lease.lose()

    def _returned(self, lease: Lease, released: bool) -> None:
        lease.due = clock.now() + RETRY
        # "Not held" is no proof: a server that hung may yet read the request to acquire.
        if released or lease.due > lease.deadline:
            self._returns.pop(id(lease), None)


def _left(lease: Lease) -> float:
    return lease.deadline - clock.now()


class ThreadBook(Book):
    def __init__(self) -> None:
        super().__init__()
        self._awake = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        self._awake.set()
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="redislock-renewal", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while True:
            self._awake.clear()
            self._awake.wait(self.seconds_to_next())
            try:
                self._round()
            except Exception:
                logger.exception("A round of renewals failed")

    def _round(self) -> None:
        for errand in self.errands():
            try:
                outcome = run(errand.server.client, errand.flow)
            except Exception as error:
                errand.failed(error)
            else:
                errand.done(outcome)
        self.tell_lost()


class LoopBook(Book):
    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._awake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        self._awake.set()
        if self._task is None:
            self._task = self._loop.create_task(self._run(), name="redislock-renewal")

    async def _run(self) -> None:
        try:
            while True:
                self._awake.clear()
                await self._sleep(self.seconds_to_next())
                try:
                    await self._round()
                except Exception:
                    logger.exception("A round of renewals failed")
        finally:
            _of_loop.pop(self._loop, None)

    async def _sleep(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._awake.wait()
        except TimeoutError:
            pass

    async def _round(self) -> None:
        for errand in self.errands():
            try:
                outcome = await arun(await errand.server.async_client(), errand.flow)
            except Exception as error:
                errand.failed(error)
            else:
                errand.done(outcome)
        self.tell_lost()


_of_process = ThreadBook()
_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopBook] = WeakKeyDictionary()


def thread_book() -> Book:
    return _of_process


def loop_book() -> Book:
    loop = asyncio.get_running_loop()
    book = _of_loop.get(loop)
    if book is None:
        book = _of_loop[loop] = LoopBook()
    return book


def _forget() -> None:
    # A forked child has neither the thread nor a right to its parent's locks.
    global _of_process
    _of_process = ThreadBook()
    _of_loop.clear()


os.register_at_fork(after_in_child=_forget)
