"""What keeps leases running, and tells when one is lost.

One thread for all locks that a process holds on a server; for locks held by asyncio
tasks, one task an event loop and server. So a server that hangs holds up no other's
renewals. Locks that have to be on replicas are renewed apart from those that need none.
Leases that are due at about the same time go together.
"""

import asyncio
import logging
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary

from .. import clock
from ..backends import Server
from ..backends.dedicated import aclose, close, dedicated, primary_address
from ..identity import is_alive
from ..text import error_text
from . import fork_safety, protocol
from .lease import Lease
from .operations import Flow
from .runners import arun, run

logger = logging.getLogger("django_redislock")

THREAD = "redislock-renewal"
"""The name of threads and tasks that renew."""

LONGEST_ROUND = 2.0
"""Seconds to wait for each answer in a round, or half of what is left of the shortest lease."""

RETRY = 1.0
"""Seconds until a failed renewal is tried again, or a tenth of the lease if that is less."""

IDLE = 10.0
"""Seconds after which a renewer without a lease ends; the next lease starts another."""

WATCHFUL = 0.4
"""Seconds that it sleeps at most where turns are taken: to wake it at each would cost the turn
more than all else that is done there, and none is to be confirmed as soon as that."""

GIVE_BACK = 60.0
"""Seconds, or the lease if that is less, for which giving back is tried at a server that is
away."""

LATE = 5.0
"""Seconds for which a server that answers "not held" may still read, after a hang, the request
that acquires."""


@dataclass(frozen=True, slots=True)
class Errand:
    """Something to do at the server, and what to do with the outcome."""

    flow: Flow[Any]
    done: Callable[[Any], None]
    failed: Callable[[Exception], None]


class Book:
    """The leases on one server that one renewer looks after, and what becomes of them.

    They are held weakly: a lock that nobody has any more, so that nobody can
    release it, is left to run out.
    """

    on_loop = False

    def __init__(self, server: Server) -> None:
        self.server = server
        self._leases: set[weakref.ref[Lease]] = set()
        self._returns: dict[tuple[str, str], Lease] = {}
        self._next = math.inf
        self._turn = -math.inf

    def wake(self) -> None:
        """Wake the renewer, or start it. Raises `RuntimeError` if no thread can be started."""
        raise NotImplementedError

    def is_running(self) -> bool:
        raise NotImplementedError

    def can_renew(self) -> bool:
        """Return whether the renewer runs, or could be started."""
        try:
            if not self.is_running():
                self.wake()
        except RuntimeError:  # see `add`
            return False
        return True

    def add(self, lease: Lease) -> None:
        self._leases.add(weakref.ref(lease, self._leases.discard))
        if lease.due >= self._next:
            return
        try:
            self.wake()
        except RuntimeError as error:
            # No thread can be started: the interpreter shuts down, or the system has none left.
            # The lock is held all the same, and the next lease tries again.
            if lease.is_renewed:
                logger.warning("Lock is not renewed: name=%r reason=%s", lease.keys.name, error)

    def turn_taken(self) -> None:
        """Somebody who had waited was let in, and renews that soon."""
        self._turn = clock.now()

    def remove(self, lease: Lease) -> None:
        self._leases.discard(weakref.ref(lease))

    def reclaim(self, name: str, token: str) -> None:
        """Give nothing back of that token any more: it is used again."""
        self._returns.pop((name, token), None)

    def give_back(self, lease: Lease, *, at_once: bool = True) -> None:
        """Release what Redis may hold for `lease`, as soon as it answers again; or a little
        later, if it was asked just now."""
        lease.deadline = clock.now() + min(lease.seconds, GIVE_BACK)
        lease.due = clock.now() + (0 if at_once else RETRY)
        self._returns[_holding(lease)] = lease
        with suppress(RuntimeError):  # no thread can be started: then its lease runs out
            self.wake()

    def seconds_to_next(self) -> float:
        """Until when the renewer sleeps, if nothing that is due before wakes it."""
        self._next = math.inf  # so that whatever is added from here on wakes it
        now = clock.now()
        dues = [lease.due for lease in (*self._current(), *self._returns.values())]
        if self._takes_turns():
            dues.append(now + WATCHFUL)
        self._next = min(dues, default=now + IDLE)
        return min(max(0.0, self._next - clock.now()), threading.TIMEOUT_MAX)

    def is_idle(self) -> bool:
        """Whether the renewer may end. If so, whatever is added from here on wakes it."""
        self._next = math.inf
        return not (self._leases or self._returns or self._takes_turns())

    def _takes_turns(self) -> bool:
        return clock.now() < self._turn + IDLE

    def errands(self) -> Iterator[Errand]:
        if leases := self._to_renew():
            done = partial(self._judge, clock.now())
            renewal = protocol.renew_all(leases, _limit(leases))
            yield Errand(renewal, done, partial(self._put_off, leases))
        returns = list(self._returns.values())  # other threads add to it
        if back := [lease for lease in returns if lease.due <= clock.now()]:
            kept = [lease for lease in self._current() if lease.wants_renewal() and not lease.lost]
            release = protocol.release_all(back, _limit(kept))
            yield Errand(release, self._returned, partial(self._not_returned, back))

    def tell_lost(self) -> None:
        now = clock.now()
        for lease in self._current():
            if lease.deadline <= now and lease.lost:
                self._lose(lease)

    def _current(self) -> list[Lease]:
        # One step for other threads, which add and remove meanwhile.
        return [lease for reference in list(self._leases) if (lease := reference())]

    def _to_renew(self) -> list[Lease]:
        now, alive = clock.now(), cache(is_alive)  # one owner may have thousands of them
        due = []
        for lease in self._current():
            if lease.due - lease.early > now or lease.lost:
                continue
            if lease.wants_renewal(alive):
                due.append(lease)
            else:
                lease.due = lease.deadline
        return due

    def _judge(self, sent: float, verdicts: Iterable[tuple[Lease, float | Exception]]) -> None:
        said = cache(error_text)  # thousands may have the same error, which is told once
        gone: list[Lease] = []
        unknown: dict[str, list[Lease]] = {}
        for lease, left in verdicts:
            if isinstance(left, Exception):
                unknown.setdefault(said(left), []).append(lease)
            elif left > 0:
                lease.renewed(sent, left)
            else:
                gone.append(lease)
        for error, leases in unknown.items():
            self._put_off(leases, error)
        # Last, as who is told of it may take its time.
        for lease in gone:
            # Else it was released while the answer was under way.
            if weakref.ref(lease) in self._leases:
                self._lose(lease)

    def _put_off(self, leases: Sequence[Lease], error: object) -> None:
        said = error_text(error)
        logger.warning("Renewal failed, will retry: locks=%d error=%s", len(leases), said)
        for lease in leases:
            lease.put_off(min(RETRY, lease.seconds / 10))

    def _lose(self, lease: Lease) -> None:
        self.remove(lease)
        lease.lose()

    def _returned(self, verdicts: Sequence[tuple[Lease, bool | Exception]]) -> None:
        for lease, released in verdicts:
            if released is True:
                self._returns.pop(_holding(lease), None)
                continue
            if released is False:
                lease.deadline = min(lease.deadline, clock.now() + LATE)
            self._try_again(lease)

    def _not_returned(self, leases: Sequence[Lease], error: Exception) -> None:
        for lease in leases:
            self._try_again(lease)

    def _try_again(self, lease: Lease) -> None:
        lease.due = clock.now() + RETRY
        if lease.due > lease.deadline:
            self._returns.pop(_holding(lease), None)


def _holding(lease: Lease) -> tuple[str, str]:
    return lease.keys.name, lease.token


def _limit(leases: Sequence[Lease]) -> float:
    """Seconds for which leases that are renewed can do without it."""
    soonest = min((lease.deadline for lease in leases), default=math.inf)
    return max(0.05, min(LONGEST_ROUND, (soonest - clock.now()) / 2))


class Bell:
    """What `threading.Event` is to one that waits, but each step is one of C: an interrupt inside
    of an Event could leave it locked for ever."""

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self.clear()

    def set(self) -> None:
        with suppress(RuntimeError):  # it was set already
            self._silent.release()

    def is_set(self) -> bool:
        return not self._silent.locked()

    def clear(self) -> None:
        self._silent.acquire(blocking=False)

    def wait(self, seconds: float) -> bool:
        """Whether it was set by then; it no longer is."""
        return self._silent.acquire(timeout=seconds)


class Dedicated:
    """The client by which one renewer reaches its server; see `dedicated()`.

    Waiters may use up the connection pool. The renewal must not depend on it, or the holder that
    all of them wait for would lose its lock.
    """

    def __init__(self) -> None:
        self._client: Any = None
        self._shared: Any = None
        self._primary: Any = None

    def client_for(self, shared: Any) -> tuple[Any, Any]:
        """Return the client next to `shared`, and an earlier one that has to be closed or None."""
        primary, old = primary_address(shared), None
        if self._shared is not shared or self._primary != primary:
            # The shared pool found another primary. The old connection may lead to the old one.
            old = self.take()
            self._client, self._shared, self._primary = dedicated(shared), shared, primary
        return self._client, old

    def take(self) -> Any:
        """Forget the client, and return it if it has to be closed."""
        client, shared = self._client, self._shared
        self._client = self._shared = self._primary = None
        return None if client is shared else client


class ThreadBook(Book):
    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._awake = Bell()
        self._starting = threading.RLock()  # a signal's handler may come in between
        self._on_round = threading.Lock()
        self._thread: threading.Thread | None = None
        self._connected = Dedicated()

    def wake(self) -> None:
        with self._starting:
            self._awake.set()
            if self._thread is None:
                self._start()

    def is_running(self) -> bool:
        return self._thread is not None

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self._thread = None  # the next lease tries again
            raise

    def _run(self) -> None:
        while True:
            self._awake.clear()
            if not self._awake.wait(self.seconds_to_next()) and self._ends():
                self._disconnect()
                return
            try:
                self._round()
            except BaseException:  # on_lost may raise anything, and this thread continues
                logger.exception("Renewal failed unexpectedly, will retry")

    def _ends(self) -> bool:
        with self._starting:
            if not self.is_idle() or self._awake.is_set():
                return False
            self._thread = None
            return True

    def _disconnect(self) -> None:
        with self._on_round:
            if client := self._connected.take():
                close(client)

    def _round(self) -> None:
        with self._on_round:
            for errand in self.errands():
                try:
                    with fork_safety.fork_guard:
                        client, old = self._connected.client_for(self.server.client)
                        if old:
                            close(old)
                        outcome = run(client, errand.flow)
                except Exception as error:
                    errand.failed(error)
                else:
                    errand.done(outcome)
            self.tell_lost()

    def go_round(self) -> None:
        """Have a thread of its own renew what is due, and tell what is lost, and wait for it."""
        thread = threading.Thread(target=self._round, name=THREAD, daemon=True)
        thread.start()
        thread.join()


class LoopBook(Book):
    on_loop = True

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._awake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._connected = Dedicated()

    def wake(self) -> None:
        self._awake.set()
        if self._task is None:
            # In a context of its own: what it tells is no part of the request that began it.
            self._task = asyncio.create_task(self._run(), name=THREAD, context=Context())
            self._task.add_done_callback(self._ended)

    def is_running(self) -> bool:
        return self._task is not None

    async def _run(self) -> None:
        try:
            await self._rounds()
        except asyncio.CancelledError:  # not GeneratorExit: after that nothing can be awaited
            await self._disconnect()
            raise
        await self._disconnect()

    async def _disconnect(self) -> None:
        if client := self._connected.take():
            await aclose(client)

    async def _rounds(self) -> None:
        while True:
            self._awake.clear()
            if not await self._wait(self.seconds_to_next()) and self.is_idle():
                return
            try:
                await self._round()
            except Exception:
                logger.exception("Renewal failed unexpectedly, will retry")

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not self.is_idle():  # all tasks were cancelled, and the loop may go on
            asyncio.get_running_loop().call_later(RETRY / 10, self._resume)

    def _resume(self) -> None:
        if not self.is_idle():
            self.wake()

    async def go_round(self) -> None:
        """Renew what is due, and tell what is lost. On its own loop."""
        await self._round()

    async def _wait(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._awake.wait()
        except TimeoutError:
            return False

    async def _round(self) -> None:
        for errand in self.errands():
            try:
                client, old = self._connected.client_for(await self.server.async_client())
                if old:
                    await aclose(old)
                outcome = await arun(client, errand.flow)
            except Exception as error:
                errand.failed(error)
            else:
                errand.done(outcome)
        self.tell_lost()


Part: TypeAlias = tuple[Server, int | None, int]
"""What fails alone, and so has a book of its own: a server, or one bucket of several servers, and
as many replicas."""

_thread_books: WeakValueDictionary[tuple[int, Part], Book] = WeakValueDictionary()
_loop_books: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[Part, Book]] = (
    WeakKeyDictionary()
)
"""Kept by who asks for a lease, who has one, and a renewer that runs: else each client by which
somebody was refused would be kept, and a loop by what its books know."""

_registering = threading.RLock()  # a signal's handler may come in between


def thread_book(server: Server, name: str, replicas: int = 0) -> Book:
    """The book of the leases on that lock that have to be on so many replicas."""
    # A book's thread is its process's, and uWSGI forks without Python's hooks.
    key = os.getpid(), (server, server.part_of(name), replicas)
    if book := _thread_books.get(key):
        return book
    with _registering:  # who asks at the same time gets the same
        return _thread_books.setdefault(key, ThreadBook(server))


def loop_book(server: Server, name: str, replicas: int = 0) -> Book:
    """See thread_book()."""
    for loop in _loops():
        if loop.is_closed():
            _loop_books.pop(loop, None)  # what is connected on it keeps it alive
    loop = asyncio.get_running_loop()
    books = _loop_books.get(loop) or _loop_books.setdefault(loop, WeakValueDictionary())
    part = server, server.part_of(name), replicas
    return books.get(part) or books.setdefault(part, LoopBook(server))


def loop_of(book: Book) -> asyncio.AbstractEventLoop | None:
    """The event loop whose tasks' leases that book has, if it is one of a loop."""
    return next((loop for loop in _loops() if book in _loop_books.get(loop, {}).values()), None)


def _loops() -> list[asyncio.AbstractEventLoop]:
    # One step for other threads, whose loops have books meanwhile.
    return [loop for reference in _loop_books.keyrefs() if (loop := reference())]


def _forget() -> None:
    # A forked child has neither the threads nor a right to its parent's locks.
    global _registering
    _registering = threading.RLock()
    _thread_books.clear()
    _loop_books.clear()


os.register_at_fork(after_in_child=_forget)
