"""Releases the locks of executions whose pool process is dead.

A pool process that was killed, or exceeded its hard time limit, cannot release its locks. Its
parent sees that it is dead. The parent knows the name of the lock by the task's arguments, and the
holder by the id of its process and of its task. So the parent releases the lock before the lease
expires. The parent finds locks of other names by a search through all locks. If the whole worker
is dead, the leases expire.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from celery.signals import worker_init, worker_ready
from celery.utils.imports import symbol_by_name
from redis.exceptions import RedisError

from django_redislock import clock
from django_redislock.identity import child_id, process_id, recorded_id
from django_redislock.snapshots import Holding, LockInfo
from django_redislock.tasks.single import Single, queue_lock_token
from django_redislock.text import error_text, printable

from .execution import release_queue_lock
from .message import Message, single_of

logger = logging.getLogger("django_redislock")

CHECK_INTERVAL_SECONDS = 0.25
"""Celery itself can need 5 seconds to see that a pool process is dead."""

LATE_COMMAND_SECONDS = 2.0
"""How long after its death a command of a pool process can still reach Redis."""

MAX_SEARCH_SECONDS = 1.0
"""The time for a search through all locks. A fork can wait for it."""


@worker_init.connect
def watch_tasks(sender: Any, **kwargs: Any) -> None:
    """Let the worker watch the requests of its single-instance tasks."""
    for task in sender.app.tasks.values():
        if single_of(task):
            request = symbol_by_name(task.Request)
            if not issubclass(request, WatchedRequest):  # else a worker ran in this process before
                task.Request = type(request.__name__, (WatchedRequest, request), {})


@worker_ready.connect
def start_monitor(sender: Any, **kwargs: Any) -> None:
    if any(map(single_of, sender.app.tasks.values())):
        _monitor.start(sender.pool)


class WatchedRequest:
    """A request to the pool. The lock of its execution does not outlive its pool process."""

    task: Any
    id: str
    args: Any
    kwargs: Any
    request_dict: dict[str, Any]

    is_in_pool = False
    """Whether a pool process can have begun it."""

    has_failed = False
    """Whether its pool process reported that it failed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _monitor.received(self)

    def revoked(self) -> bool:
        """Return whether Celery drops the request. Celery gives it to the pool right after a no.

        Celery derives a class from this one whose `execute_using_pool` does not call its base.
        """
        is_revoked: bool = super().revoked()  # type: ignore[misc]  # a mixin
        self.is_in_pool = not is_revoked
        return is_revoked

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        _monitor.started(self, pid)
        super().on_accepted(pid, time_accepted)  # type: ignore[misc]  # a mixin

    def on_failure(self, *args: Any, return_ok: bool = False, **options: Any) -> None:
        self.has_failed = return_ok
        super().on_failure(*args, return_ok=return_ok, **options)  # type: ignore[misc]  # a mixin

    @property
    def has_ended(self) -> bool:
        """Whether its pool process reported how it ended."""
        from celery.worker.state import successful_requests  # only a worker needs it

        return self.has_failed or self.id in successful_requests


class StartedRequest(NamedTuple):
    """The part of a request that the monitor keeps until its next check.

    A worker that keeps whole requests until then needs about 6% more processor time per task.
    """

    task: Any
    id: str
    args: Any
    kwargs: Any
    has_ended: bool = False


class Monitor:
    """Checks the last request of each pool process, and the requests that wait and are revoked.

    If a pool process is killed as it begins, Celery may not hear that it began. Celery then gives
    the request to another pool process, which meets the lock of the first. So the requests that a
    dead process can have begun are checked, too.
    """

    def __init__(self) -> None:
        self._requests: dict[int, WatchedRequest] = {}
        """The last request of each pool process, by its pid."""
        self._waiting: WeakValueDictionary[str, WatchedRequest] = WeakValueDictionary()
        self._just_started: deque[StartedRequest] = deque()
        self._pool: Any = None
        self._pids: set[int] = set()
        self._dead: list[DeadExecution] = []
        self._check_guard = threading.Lock()

    def received(self, request: WatchedRequest) -> None:
        self._waiting[request.id] = request

    def started(self, request: WatchedRequest, pid: int) -> None:
        self._waiting.pop(request.id, None)
        # Threads run in this process, and a greenlet reports the id of an object.
        if pid != os.getpid() and not getattr(self._pool, "is_green", False):
            self._requests[pid] = request
            started = StartedRequest(request.task, request.id, request.args, request.kwargs)
            self._just_started.append(started)

    def start(self, pool: Any) -> None:
        """Start the monitor, if it does not run yet."""
        if self._pool is None:
            self._pool = pool
            self._take_dead_pids()
            threading.Thread(target=self._run, name="redislock-watch", daemon=True).start()
            # A cold shutdown ends as soon as the last pool process is dead.
            atexit.register(self._check_at_exit, os.getpid())

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(CHECK_INTERVAL_SECONDS)
            try:
                self._check()
            except Exception:
                logger.exception("Check for dead pool processes failed, will retry")

    def _check_at_exit(self, started_in: int) -> None:
        if os.getpid() == started_in:  # not in a pool process, whose siblings are not its children
            self._check()

    def _check(self) -> None:
        with self._check_guard:
            # Before the pids are read: a request that starts now is in a live process.
            waiting = [each for ref in self._waiting.valuerefs() if (each := ref()) is not None]
            suspects: list[WatchedRequest | StartedRequest] = [
                *(each for each in waiting if each.is_in_pool),
                *(self._just_started.popleft() for _ in range(len(self._just_started))),
            ]
            if pids := self._take_dead_pids():
                processes, now = {child_id(process_id(), pid) for pid in pids}, clock.now()
                last = [self._requests.pop(pid) for pid in pids if pid in self._requests]
                self._dead += [DeadExecution(each, processes, now, searches=True) for each in last]
                self._dead += [
                    DeadExecution(each, processes, now, watched_for=CHECK_INTERVAL_SECONDS)
                    for each in suspects
                ]
            self._dead = [each for each in self._dead if not each.is_settled()]
            self._release_revoked(waiting)

    def _take_dead_pids(self) -> set[int]:
        """Return the pids of the pool processes that have died since the last check."""
        with suppress(AttributeError):  # the pool has ended
            pids = self._pool.info.get("processes", ())
            # A pool process that is being forked has none. A pool without processes has its own.
            self._pids.update(pid for pid in pids if pid and pid != os.getpid())
        self._pids.update(list(self._requests))
        dead = set(filter(_is_dead, self._pids))
        self._pids -= dead
        return dead

    def _release_revoked(self, waiting: Iterable[WatchedRequest]) -> None:
        """Release the queue locks of revoked tasks. Celery revokes a task only when it is due."""
        from celery.worker.state import revoked  # only a worker needs it

        for request in waiting:
            if request.id in revoked:
                self._waiting.pop(request.id, None)
                release_queue_lock(request.task, request, request.request_dict)


@dataclass(slots=True)
class DeadExecution:
    """An execution whose pool process is dead."""

    request: WatchedRequest | StartedRequest
    processes: Collection[str]
    """The ids of dead processes. One of them may have run the execution."""

    since: float
    watched_for: float = LATE_COMMAND_SECONDS
    """Seconds."""

    searches: bool = False
    """Whether a search through all locks is still to be made."""

    failed: bool = False

    def is_settled(self) -> bool:
        """Release its locks, and return whether no further check is needed."""
        single = single_of(self.request.task)
        if single is None:
            return True
        try:
            self._release(single)
        except RedisError as error:
            if not self.failed:
                logger.warning(
                    "Lock not yet released for dead process: task=%s error=%s",
                    *(self, error_text(error)),
                )
            self.failed = True
            return clock.now() - self.since > single.lock("unused").timeout  # it has expired
        except Exception:
            logger.exception("Lock not released for dead process: task=%s", self)
            return True
        return clock.now() - self.since > self.watched_for

    def _release(self, single: Single) -> None:
        manager, at_least_for = single.manager, single.options.at_least_for
        for name, holding in self._under_its_name(single) or self._under_other_names(single):
            if manager.release_for(name, holding.token, at_least_for=at_least_for):
                logger.warning(
                    "Lock released for dead process: name=%r task=%s pid=%s",
                    *(name, self, holding.holder.pid),
                )

    def _under_its_name(self, single: Single) -> list[tuple[str, Holding]]:
        message = Message(single, self.request.task, self.request)
        try:
            name = single.name_of(message.call)
        except Exception:  # a decorator gives the function other arguments
            return []
        info = single.manager.get(name)
        return self._held_of([info] if info else [])

    def _under_other_names(self, single: Single) -> list[tuple[str, Holding]]:
        """Search all locks once. Until then, the process can have reported the end of its task."""
        if single.options.at_least_for:
            return []  # it is unknown which of them have a cooldown
        waits = clock.now() - self.since < CHECK_INTERVAL_SECONDS
        if not self.searches or waits or self.request.has_ended:
            return []
        until = clock.now() + MAX_SEARCH_SECONDS
        found = self._held_of(takewhile(lambda _: clock.now() < until, single.manager.active()))
        self.searches = False
        # A lock without renewal must last until its lease expires.
        return [(name, holding) for name, holding in found if holding.renewed]

    def _held_of(self, infos: Iterable[LockInfo]) -> list[tuple[str, Holding]]:
        """Return what the dead process holds for the execution, with the name of each lock.

        The queue lock of a message that the execution sent again stays. So does a cooldown.
        """
        task_id = str(self.request.id)
        return [
            (info.name, holding)
            for info in infos
            for holding in info.holders
            if holding.holder.process in self.processes
            and holding.holder.task_id == recorded_id(task_id)
            and holding.timeout
            and holding.token != queue_lock_token(task_id)
        ]

    def __str__(self) -> str:
        return f"{self.request.task.name}[{printable(self.request.id)}]"


_monitor = Monitor()


def _is_dead(pid: int) -> bool:
    try:
        if hasattr(os, "waitid"):  # without WNOWAIT, the pool could not wait for it
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, pid, flags) is not None
        os.kill(pid, 0)  # macOS before Python 3.13: dead after the pool has waited for it
    except (ChildProcessError, ProcessLookupError):
        return True
    return False
