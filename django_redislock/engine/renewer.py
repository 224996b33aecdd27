"""Renew leases, and notify their holders of a loss.

There is one renewer thread per process and server, and one renewer task per event loop and server.
So a server that does not respond delays no renewals on other servers. Locks with `min_replicas`
have a renewer of their own. Leases that are due at about the same time are renewed together.
"""

import asyncio
import logging
import math
import os
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
from ..identity import is_alive
from ..keys import LockKeys
from ..text import error_text
from . import background_task, protocol
from .events import InterruptSafeEvent
from .lease import Lease, LeaseState
from .loop_transport import LoopLink
from .operations import Flow
from .protocol import PendingRelease
from .registry import all_holds, should_renew
from .runners import arun, run
from .thread_transport import ThreadLink
from .timing import (
    BACKGROUND_RELEASE_SECONDS,
    GRANT_POLL_SECONDS,
    LATE_REQUEST_SECONDS,
    MAX_RELEASES_PER_ROUND,
    MIN_RENEWAL_RETRY_SECONDS,
    RENEWAL_REPLY_SECONDS,
    RENEWAL_RETRY_SECONDS,
    RENEWER_IDLE_SECONDS,
)

logger = logging.getLogger("django_redislock")

THREAD_NAME = "redislock-renewal"
"""The name of the threads and tasks that renew."""


Results: TypeAlias = Iterable[tuple[Any, Any]]
"""Leases or pending releases, each with the reply of Redis or an error."""


@dataclass(frozen=True, slots=True)
class RenewalBatch:
    """A request about several leases or pending releases."""

    items: Sequence[Any]
    flow: Flow[Results]
    apply: Callable[[Results], None]


class Renewer:
    """Renews the leases of one server, which it finds in the registry.

    A lease whose lock object is garbage-collected leaves the registry, and expires.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self._worker: Any = None  # the thread or task
        self._to_release: dict[tuple[str, str], PendingRelease] = {}
        self._wakes_at = math.inf
        self._last_grant = -math.inf

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
        """Take care of a lease that was added to the registry, or is due earlier than before."""
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

    def release_later(
        self, keys: LockKeys, token: str, longest: float, at_least_for: float = 0
    ) -> None:
        """Release a lock in the background, and retry until the server responds.

        Args:
            keys: The lock.
            token: The stored token.
            longest: The seconds after which the lease has certainly expired.
            at_least_for: The lock stays unavailable until this many seconds after its
                acquisition.
        """
        now = clock.now()
        until = now + min(longest, BACKGROUND_RELEASE_SECONDS)
        self._to_release[keys.name, token] = PendingRelease(keys, token, at_least_for, now, until)
        with suppress(RuntimeError):  # no thread can be started, so the lease expires
            self.wake()

    def cancel_release(self, name: str, token: str) -> None:
        """Do not release that token any more, because it is used again."""
        self._to_release.pop((name, token), None)

    def seconds_to_next(self) -> float:
        """Return how long the renewer sleeps unless `wake()` is called."""
        self._wakes_at = math.inf  # so that every lease that is added from here on wakes it
        now = clock.now()
        dues = [lease.due for lease in self.watched()]
        dues += [release.due for release in list(self._to_release.values())]
        if self._expects_grants():
            dues.append(now + GRANT_POLL_SECONDS)
        self._wakes_at = min(dues, default=now + RENEWER_IDLE_SECONDS)
        return min(max(0.0, self._wakes_at - clock.now()), threading.TIMEOUT_MAX)

    def may_end(self) -> bool:
        """Return whether the renewer may end. A lease that is watched from here on wakes it."""
        self._wakes_at = math.inf
        return not (self.watched() or self._to_release or self._expects_grants())

    def _expects_grants(self) -> bool:
        return clock.now() < self._last_grant + RENEWER_IDLE_SECONDS

    def batches(self, watched: Iterable[Lease]) -> Iterator[RenewalBatch]:
        """Yield what is due now."""
        if leases := self._due_leases(watched):
            renewal = protocol.renew_all(leases, _time_to_reply(leases))
            yield RenewalBatch(leases, renewal, partial(self._apply_renewals, clock.now()))
        if lost := self._due_retakes(watched):
            flow = protocol.retake_all(lost, _time_to_reply(self._renewed()))
            yield RenewalBatch(lost, flow, partial(self._apply_retakes, clock.now()))
        releases = list(self._to_release.values())  # a copy, because other threads add to it
        due = [release for release in releases if release.due <= clock.now()][
            :MAX_RELEASES_PER_ROUND
        ]
        if due:
            release = protocol.release_all(due, _time_to_reply(self._renewed()))
            yield RenewalBatch(due, release, self._apply_releases)

    def report_expired(self, watched: Iterable[Lease]) -> None:
        """Notify the holders of leases that expired without a reply from Redis."""
        for lease in watched:
            if lease.lost and lease.state is LeaseState.HELD and not lease.is_loss_reported:
                self._lose(lease)

    def watched(self) -> list[Lease]:
        """Return the leases that are held, and the lost ones that it must report or retake."""
        own = {hold.lease: None for hold in all_holds() if hold.lease.renewer is self}
        return [
            lease
            for lease in own
            if lease.state is LeaseState.HELD and (lease.retake or not lease.is_loss_reported)
        ]

    def _renewed(self) -> list[Lease]:
        return [lease for lease in self.watched() if should_renew(lease) and not lease.lost]

    def _due_leases(self, watched: Iterable[Lease]) -> list[Lease]:
        now = clock.now()
        alive = cache(is_alive)  # one owner may have thousands of leases
        due = []
        for lease in watched:
            if lease.due - lease.due_tolerance > now or lease.lost:
                continue
            if lease.needs_renewal and should_renew(lease, alive):
                due.append(lease)
            else:
                lease.due = lease.deadline
        return due

    def _due_retakes(self, watched: Iterable[Lease]) -> list[Lease]:
        """Return the lost leases to acquire again, while enough others of their hold are left."""
        now = clock.now()
        due = []
        for lease in watched:
            if not (lease.retake and lease.is_loss_reported and lease.due <= now):
                continue
            if should_renew(lease):
                lease.note_loss_reported()  # makes the next attempt due
                due.append(lease)
            else:
                lease.retake = None
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
            now = clock.now()
            for lease in leases:
                # A grant that is not confirmed yet has little time left, whatever its lease.
                quarter = max((lease.deadline - now) / 4, MIN_RENEWAL_RETRY_SECONDS)
                lease.postpone(min(RENEWAL_RETRY_SECONDS, lease.seconds / 10, quarter))
        # Last, because `on_lost` may take long.
        for lease in lost:
            if lease.state is LeaseState.HELD:  # else its release was faster than the reply
                self._lose(lease)

    def _lose(self, lease: Lease) -> None:
        lease.mark_lost()
        lease.note_loss_reported()
        lease.on_lost(lease)

    def _apply_retakes(self, sent_at: float, results: Results) -> None:
        for lease, fence_token in results:
            if lease.state is not LeaseState.HELD:  # its release may have been faster
                self.release_later(lease.keys, lease.token, lease.seconds)
            elif isinstance(fence_token, int) and fence_token and should_renew(lease):
                lease.begin_again(fence_token, sent_at + lease.seconds)
                logger.info(
                    "Lock acquired again on a server that was away: name=%r using=%r",
                    *(lease.keys.name, lease.server.alias),
                )

    def _apply_releases(self, results: Results) -> None:
        for release, released in results:
            release.due = clock.now() + RENEWAL_RETRY_SECONDS
            if released is False:
                release.until = min(release.until, clock.now() + LATE_REQUEST_SECONDS)
            is_over = released is True or release.due > release.until
            key = release.keys.name, release.token
            if is_over and self._to_release.get(key) is release:  # not a later one
                self._to_release.pop(key, None)


def _time_to_reply(leases: Sequence[Lease]) -> float:
    """Return the seconds for which the leases can wait for a reply."""
    deadline = min((lease.deadline for lease in leases), default=math.inf)
    return max(0.05, min(RENEWAL_REPLY_SECONDS, (deadline - clock.now()) / 2))


class ThreadRenewer(Renewer):
    """Renews in a thread, for the threads and greenlets of this process."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._link = ThreadLink(size=1)
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
            try:
                self._wakeup.clear()
                if not self._wakeup.wait(self.seconds_to_next()) and self._ends():
                    break
                self._round()
            except BaseException:  # on_lost may raise anything, and this thread continues
                logger.exception("Renewal failed unexpectedly, will retry")
                self._wakeup.wait(MIN_RENEWAL_RETRY_SECONDS)
        with self._in_round:
            self._link.close()

    def _ends(self) -> bool:
        with self._starting:
            if not self.may_end() or self._wakeup.is_set():
                return False
            self._worker = None
            return True

    def _round(self) -> None:
        with self._in_round:
            watched = self.watched()
            for batch in self.batches(watched):
                try:
                    results = run(self.server.client, batch.flow, self._link)
                except Exception as error:
                    results = zip(batch.items, repeat(error))
                batch.apply(results)
            self.report_expired(watched)

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
        self._link = LoopLink()
        self._wakeup = asyncio.Event()

    def wake(self) -> None:
        self._wakeup.set()
        if self._worker is None:
            self._worker = background_task.start(self._run(), THREAD_NAME)
            self._worker.add_done_callback(self._ended)

    async def _run(self) -> None:
        try:
            await self._link.end_with_loop()
            await self._rounds()
        finally:
            self._link.close()

    async def _rounds(self) -> None:
        while True:
            try:
                self._wakeup.clear()
                if not await self._is_woken(self.seconds_to_next()) and self.may_end():
                    return
                await self.run_once()
                background_task.raise_cancellation()
            except Exception:
                logger.exception("Renewal failed unexpectedly, will retry")
                await self._is_woken(MIN_RENEWAL_RETRY_SECONDS)

    async def _is_woken(self, seconds: float) -> bool:
        """Wait until the renewer is woken, and return whether it was within these seconds."""
        try:
            async with asyncio.timeout(seconds):
                return await self._wakeup.wait()
        except TimeoutError:
            return False

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._worker = None
        if not self.may_end():  # all tasks were cancelled, and the loop may go on
            asyncio.get_running_loop().call_later(MIN_RENEWAL_RETRY_SECONDS, self._restart)

    def _restart(self) -> None:
        # Not for a grant that may come: the loop may be closing.
        if self._to_release or any(map(should_renew, self.watched())):
            self.wake()

    async def run_once(self) -> None:
        """Renew what is due and report losses. Call it on the renewer's own loop."""
        watched = self.watched()
        for batch in self.batches(watched):
            try:
                client = await self.server.async_client()
                results = await arun(client, batch.flow, self._link)
            except Exception as error:
                results = zip(batch.items, repeat(error))
            batch.apply(results)
        self.report_expired(watched)


RenewerKey: TypeAlias = tuple[Server, int]
"""A server, and `min_replicas`. Each of them can fail alone."""

# Weak values: a renewer exists as long as a lease, a caller or a running thread refers to it.
_thread_renewers: dict[tuple[int, RenewerKey], ref[ThreadRenewer]] = {}
_loop_renewers: WeakKeyDictionary[
    asyncio.AbstractEventLoop, WeakValueDictionary[RenewerKey, AsyncRenewer]
] = WeakKeyDictionary()


def thread_renewer(server: Server, min_replicas: int = 0) -> ThreadRenewer:
    """Return the renewer for a lock that a thread or greenlet of this process holds."""
    # The pid, because a renewer's thread is not in a forked child, and uWSGI forks without
    # Python's hooks.
    key = os.getpid(), (server, min_replicas)
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


def loop_renewer(server: Server, min_replicas: int = 0) -> AsyncRenewer:
    """Return the renewer for a lock that a task of the running event loop holds."""
    for reference in _loop_renewers.keyrefs():  # a copy, because other threads add their loops
        if (loop := reference()) and loop.is_closed():
            _loop_renewers.pop(loop, None)  # its connections would keep it alive
    loop = asyncio.get_running_loop()
    of_loop = _loop_renewers.get(loop) or _loop_renewers.setdefault(loop, WeakValueDictionary())
    key = server, min_replicas
    return of_loop.get(key) or of_loop.setdefault(key, AsyncRenewer(server))


def _reset_after_fork() -> None:
    # A forked child has neither the threads nor a right to its parent's locks.
    _thread_renewers.clear()
    _loop_renewers.clear()


os.register_at_fork(after_in_child=_reset_after_fork)
