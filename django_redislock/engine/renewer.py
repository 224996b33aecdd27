"""Renew leases, and notify their holders of a loss.

There is one renewer thread per process and server, and one renewer task per event loop and server.
So a server that does not respond delays no renewals on other servers. Locks with `min_replicas`
have a renewer of their own. Leases that are due at about the same time are renewed together.
"""

import asyncio
import logging
import math
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import repeat
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from .. import clock
from ..backends import Server
from ..backends.dedicated import DedicatedClient, aclose, close
from ..identity import is_alive
from ..text import error_text
from . import background_task, protocol
from .events import InterruptSafeEvent
from .leases import Lease, should_renew
from .operations import Flow
from .runners import arun_dedicated, run_dedicated
from .timing import GRANT_POLL_SECONDS

logger = logging.getLogger("django_redislock")

THREAD_NAME = "redislock-renewal"
"""The name of the threads and tasks that renew."""

MAX_REPLY_SECONDS = 2.0
"""How long a renewer waits for a reply, unless the shortest lease requires less."""

RETRY_SECONDS = 1.0
"""How long after a failed renewal it is retried, or a tenth of the lease if that is less."""

IDLE_SECONDS = 10.0
"""A renewer without a lease ends after this time."""

RELEASE_RETRY_SECONDS = 3600.0
"""How long a release is retried in the background, or until the lease ends if that is sooner."""

MAX_RELEASES = 5000
"""How many locks are released in one round trip, so that renewals do not wait for them."""

LATE_REQUEST_SECONDS = 5.0
"""A server that was paused may still execute an acquisition for this time after it replied
that the lock is not held."""


Results: TypeAlias = Iterable[tuple[Lease, Any]]
"""Leases, each with the reply of Redis or an error."""


@dataclass(frozen=True, slots=True)
class RenewalBatch:
    """A request about several leases."""

    leases: Sequence[Lease]
    flow: Flow[Results]
    apply: Callable[[Results], None]


class Renewer:
    """Renews the leases of one server.

    It keeps weak references: a lease that nobody references any more is not renewed and expires.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self._worker: Any = None  # the thread or task
        self._leases: set[ref[Lease]] = set()
        self._to_release: dict[tuple[str, str], Lease] = {}
        self._wakes_at = math.inf
        self._last_grant = -math.inf
        self._dedicated = DedicatedClient()

    def wake(self) -> None:
        """Wake the renewer, or start it. Raises `RuntimeError` if no thread can be started."""
        raise NotImplementedError

    def ensure_running(self) -> bool:
        """Start the renewer if it does not run, and return whether it runs."""
        try:
            if not self._worker:
                self.wake()
        except RuntimeError:  # see `watch`
            return False
        return True

    def watch(self, lease: Lease) -> None:
        """Renew a lease from now on. Call it again if the lease is due earlier than before."""
        self._leases.add(ref(lease, self._leases.discard))
        if not lease.is_confirmed:
            self._last_grant = clock.now()
        if lease.due >= self._wakes_at:
            return
        try:
            self.wake()
        except RuntimeError as error:
            # No thread can be started: the interpreter shuts down, or the system has none left.
            # The lock is held, and the next lease tries again.
            if lease.is_renewed:
                logger.warning("Lock is not renewed: name=%r reason=%s", lease.keys.name, error)

    def forget(self, lease: Lease) -> None:
        """Stop renewing a lease."""
        self._leases.discard(ref(lease))

    def release_later(self, lease: Lease) -> None:
        """Release a lease in the background, and retry until the server responds."""
        # The lease has ended. Its deadline is now the limit for the release. A request without a
        # reply may begin a full lease as late as now.
        lease.due = clock.now()
        longest = max(lease.deadline - lease.due, lease.seconds, lease.at_least_for)
        lease.deadline = lease.due + min(longest, RELEASE_RETRY_SECONDS)
        self._to_release[lease.keys.name, lease.token] = lease
        with suppress(RuntimeError):  # no thread can be started, so the lease expires
            self.wake()

    def cancel_release(self, name: str, token: str) -> None:
        """Do not release that token any more, because it is used again."""
        self._to_release.pop((name, token), None)

    def seconds_to_next(self) -> float:
        """Return how long the renewer sleeps unless `wake()` is called."""
        self._wakes_at = math.inf  # so that every lease that is added from here on wakes it
        now = clock.now()
        dues = [lease.due for lease in (*self._watched(), *self._to_release.values())]
        if self._expects_grants():
            dues.append(now + GRANT_POLL_SECONDS)
        self._wakes_at = min(dues, default=now + IDLE_SECONDS)
        return min(max(0.0, self._wakes_at - clock.now()), threading.TIMEOUT_MAX)

    def may_end(self) -> bool:
        """Return whether the renewer may end. From here on, each new lease wakes or starts it."""
        self._wakes_at = math.inf
        return not (self._leases or self._to_release or self._expects_grants())

    def _expects_grants(self) -> bool:
        return clock.now() < self._last_grant + IDLE_SECONDS

    def batches(self) -> Iterator[RenewalBatch]:
        """Yield what is due now."""
        if leases := self._due_leases():
            renewal = protocol.renew_all(leases, _reply_timeout(leases))
            applied = partial(self._apply_renewals, clock.now())
            yield RenewalBatch(leases, renewal, applied)
        releases = list(self._to_release.values())  # a copy, because other threads add to it
        due = [lease for lease in releases if lease.due <= clock.now()][:MAX_RELEASES]
        if due:
            held = [lease for lease in self._watched() if should_renew(lease) and not lease.lost]
            release = protocol.release_all(due, _reply_timeout(held))
            yield RenewalBatch(due, release, self._apply_releases)

    def report_expired(self) -> None:
        """Notify the holders of leases that expired without a reply from Redis."""
        now = clock.now()
        for lease in self._watched():
            if lease.deadline <= now and lease.lost:
                self._lose(lease)

    def _watched(self) -> list[Lease]:
        # One step, because other threads change the set.
        return [lease for reference in list(self._leases) if (lease := reference())]

    def _due_leases(self) -> list[Lease]:
        now, alive = clock.now(), cache(is_alive)  # one owner may have thousands of leases
        due = []
        for lease in self._watched():
            if lease.due - lease.due_tolerance > now or lease.lost:
                continue
            if lease.needs_renewal and should_renew(lease, alive):
                due.append(lease)
            else:
                lease.due = lease.deadline
        return due

    def _apply_renewals(self, sent_at: float, results: Results) -> None:
        text = cache(error_text)  # thousands may have the same error, which is logged once
        lost: list[Lease] = []
        failed: dict[str, list[Lease]] = {}
        for lease, ttl in results:
            if isinstance(ttl, Exception):
                failed.setdefault(text(ttl), []).append(lease)
            elif ttl > 0:
                lease.apply_renewal(sent_at, ttl)
            else:
                lost.append(lease)
        for error, leases in failed.items():
            logger.warning("Renewal failed, will retry: locks=%d error=%s", len(leases), error)
            for lease in leases:
                lease.postpone(min(RETRY_SECONDS, lease.seconds / 10))
        # Last, because `on_lost` may take long.
        for lease in lost:
            if ref(lease) in self._leases:  # else it was released while the reply was under way
                self._lose(lease)

    def _lose(self, lease: Lease) -> None:
        self.forget(lease)
        lease.mark_lost()

    def _apply_releases(self, results: Results) -> None:
        for lease, released in results:
            lease.due = clock.now() + RETRY_SECONDS
            if released is False:
                lease.deadline = min(lease.deadline, clock.now() + LATE_REQUEST_SECONDS)
            if released is True or lease.due > lease.deadline:
                self.cancel_release(lease.keys.name, lease.token)


def _reply_timeout(leases: Sequence[Lease]) -> float:
    """Return the seconds for which the leases can wait for a reply."""
    deadline = min((lease.deadline for lease in leases), default=math.inf)
    return max(0.05, min(MAX_REPLY_SECONDS, (deadline - clock.now()) / 2))


class ThreadRenewer(Renewer):
    """Renews in a thread, for the threads and greenlets of this process."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._wakeup = InterruptSafeEvent()
        self._starting = threading.RLock()  # re-entrant, because a signal handler may acquire
        self._in_round = threading.Lock()

    def wake(self) -> None:
        with self._starting:
            self._wakeup.set()
            if self._worker is None:
                self._worker = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
                try:
                    self._worker.start()
                except BaseException:
                    self._worker = None  # the next lease tries again
                    raise

    def _run(self) -> None:
        while True:
            self._wakeup.clear()
            if not self._wakeup.wait(self.seconds_to_next()) and self._ends():
                break
            try:
                self._round()
            except BaseException:  # on_lost may raise anything, and this thread continues
                logger.exception("Renewal failed unexpectedly, will retry")
        with self._in_round:
            if client := self._dedicated.take():
                close(client)

    def _ends(self) -> bool:
        with self._starting:
            if not self.may_end() or self._wakeup.is_set():
                return False
            self._worker = None
            return True

    def _round(self) -> None:
        with self._in_round:
            for batch in self.batches():
                try:
                    results = run_dedicated(self._dedicated, self.server.client, batch.flow)
                except Exception as error:
                    results = zip(batch.leases, repeat(error))
                batch.apply(results)
            self.report_expired()

    def run_once(self) -> None:
        """Renew what is due and report losses, in another thread, and wait for it."""
        thread = threading.Thread(target=self._round, name=THREAD_NAME, daemon=True)
        thread.start()
        thread.join()


class AsyncRenewer(Renewer):
    """Renews in an asyncio task, for the tasks of one event loop."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.loop = asyncio.get_running_loop()
        self._wakeup = asyncio.Event()

    def wake(self) -> None:
        self._wakeup.set()
        if self._worker is None:
            self._worker = background_task.start(self._run(), THREAD_NAME)
            self._worker.add_done_callback(self._ended)

    async def _run(self) -> None:
        try:
            await self._rounds()
        finally:
            is_closed = isinstance(sys.exception(), GeneratorExit)  # then nothing can be awaited
            if not is_closed and (client := self._dedicated.take()):
                await aclose(client)

    async def _rounds(self) -> None:
        while True:
            self._wakeup.clear()
            try:
                async with asyncio.timeout(self.seconds_to_next()):
                    await self._wakeup.wait()
            except TimeoutError:
                if self.may_end():
                    return
            try:
                await self.run_once()
            except Exception:
                logger.exception("Renewal failed unexpectedly, will retry")

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._worker = None
        if not self.may_end():  # all tasks were cancelled, and the loop may go on
            asyncio.get_running_loop().call_later(RETRY_SECONDS / 10, self._restart)

    def _restart(self) -> None:
        # Not for a grant that may come: the loop may be closing.
        if self._to_release or any(map(should_renew, self._watched())):
            self.wake()

    async def run_once(self) -> None:
        """Renew what is due and report losses. Call it on the renewer's own loop."""
        for batch in self.batches():
            try:
                client = await self.server.async_client()
                results = await arun_dedicated(self._dedicated, client, batch.flow)
            except Exception as error:
                results = zip(batch.leases, repeat(error))
            batch.apply(results)
        self.report_expired()


RenewerKey: TypeAlias = tuple[Server, int | None, int]
"""A server, or a bucket of a Cluster, and `min_replicas`. Each of them can fail alone."""

# Weak values: a renewer exists as long as a lease, a caller or a running thread refers to it.
_thread_renewers: dict[tuple[int, RenewerKey], ref[ThreadRenewer]] = {}
_loop_renewers: WeakKeyDictionary[
    asyncio.AbstractEventLoop, WeakValueDictionary[RenewerKey, AsyncRenewer]
] = WeakKeyDictionary()


def thread_renewer(server: Server, name: str, min_replicas: int = 0) -> ThreadRenewer:
    """Return the renewer for a lock that a thread or greenlet of this process holds."""
    # The pid, because a renewer's thread is not in a forked child, and uWSGI forks without
    # Python's hooks.
    part = server.part_of(name) if server.keys.has_nodes else None
    key = os.getpid(), (server, part, min_replicas)
    # Without a thread lock, which an interrupt could leave acquired: each change of the dictionary
    # is one step.
    while True:
        known = _thread_renewers.get(key)
        if known is None:
            made = ThreadRenewer(server)
            known = _thread_renewers.setdefault(key, ref(made, partial(_forget, key)))
        renewer = known()
        if renewer is not None:
            return renewer
        _forget(key, known)


def _forget(key: tuple[int, RenewerKey], ended: ref[ThreadRenewer]) -> None:
    if _thread_renewers.get(key) is ended:
        _thread_renewers.pop(key, None)


def thread_renewers() -> list[ThreadRenewer]:
    """Return the renewers of the threads of this process."""
    return [renewer for known in list(_thread_renewers.values()) if (renewer := known())]


def loop_renewer(server: Server, name: str, min_replicas: int = 0) -> AsyncRenewer:
    """Return the renewer for a lock that a task of the running event loop holds."""
    for reference in _loop_renewers.keyrefs():  # a copy, because other threads add their loops
        if (loop := reference()) and loop.is_closed():
            _loop_renewers.pop(loop, None)  # its connections would keep it alive
    loop = asyncio.get_running_loop()
    of_loop = _loop_renewers.get(loop) or _loop_renewers.setdefault(loop, WeakValueDictionary())
    part = server.part_of(name) if server.keys.has_nodes else None
    key = server, part, min_replicas
    return of_loop.get(key) or of_loop.setdefault(key, AsyncRenewer(server))


def _reset_after_fork() -> None:
    # A forked child has neither the threads nor a right to its parent's locks.
    _thread_renewers.clear()
    _loop_renewers.clear()


os.register_at_fork(after_in_child=_reset_after_fork)
