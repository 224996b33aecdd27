"""Releases the locks of pool processes that are dead, and the queue locks of revoked tasks.

A pool process that was killed, or exceeded its hard time limit, cannot release its locks. Its
parent, the worker, sees that it is dead, and reads on the board which lock it held. So the worker
releases the lock before the lease expires. If the whole worker is dead, the leases expire.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any
from weakref import WeakValueDictionary

from celery.app.task import Context
from celery.signals import task_received, worker_ready
from redis.exceptions import RedisError

from django_redislock import clock
from django_redislock.identity import child_id, process_id
from django_redislock.manager import locks
from django_redislock.snapshots import Holding, LockInfo
from django_redislock.text import error_text, printable

from . import board
from .board import ShownLock
from .execution import release_queue_lock
from .message import single_of

logger = logging.getLogger("django_redislock")

CHECK_INTERVAL_SECONDS = 0.25
"""Celery itself can need 5 seconds to see that a pool process is dead."""

LATE_COMMAND_SECONDS = 2.0
"""How long after its death a command of a pool process can still reach Redis."""

MAX_SEARCH_SECONDS = 1.0
"""The time for a search through all locks. A fork can wait for it."""


@worker_ready.connect
def start_monitor(**_: Any) -> None:
    _monitor.start()


@task_received.connect
def received(request: Any, **_: Any) -> None:
    # A worker keeps a task until its ETA, and revokes it only then.
    if request.eta and (single := single_of(request.task)) and single.options.may_have_queue_lock:
        _monitor.scheduled[request.id] = request


class Monitor:
    """Checks the pool processes and the scheduled tasks of this worker."""

    def __init__(self) -> None:
        self.scheduled: WeakValueDictionary[str, Any] = WeakValueDictionary()
        """The requests that wait for their ETA, by the ids of their tasks."""
        self.dead: list[DeadProcess] = []
        self._check_guard = threading.Lock()
        self._is_started = False

    def start(self) -> None:
        """Start the monitor, if it does not run yet."""
        if not self._is_started:
            self._is_started = True
            threading.Thread(target=self._run, name="redislock-watch", daemon=True).start()
            # A cold shutdown ends as soon as the last pool process is dead.
            atexit.register(self._check_at_exit, os.getpid())

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(CHECK_INTERVAL_SECONDS)
            try:
                self.check()
            except Exception:
                logger.exception("Check for dead pool processes failed, will retry")

    def _check_at_exit(self, started_in: int) -> None:
        if os.getpid() == started_in:  # not in a pool process, whose siblings are not its children
            self.check()

    def check(self) -> None:
        with self._check_guard:
            for lock in board.shown():
                if _is_dead(lock.pid):
                    board.clear(lock.slot)
                    self.dead.append(DeadProcess(lock, clock.now()))
            self.dead = [each for each in self.dead if not each.is_settled()]
            self._release_revoked()

    def _release_revoked(self) -> None:
        from celery.worker.state import revoked  # only a worker needs it

        for task_id in list(self.scheduled):
            if task_id in revoked and (request := self.scheduled.pop(task_id, None)):
                more = {"args": request.args, "kwargs": request.kwargs}
                release_queue_lock(request.task, Context({**request.request_dict, **more}))


@dataclass(slots=True)
class DeadProcess:
    """A pool process that died while it held a lock, or was about to acquire it."""

    lock: ShownLock
    since: float
    is_searched: bool = False
    """Whether all locks were searched for others that it held."""

    failed: bool = False

    def is_settled(self) -> bool:
        """Release its locks, and return whether no further check is needed."""
        age, lock = clock.now() - self.since, self.lock
        try:
            self._release(age)
        except RedisError as error:
            if not self.failed:
                logger.warning(
                    "Lock not yet released for dead process: name=%r pid=%s error=%s",
                    *(lock.name, lock.pid, error_text(error)),
                )
            self.failed = True
            return age > max(lock.timeout, lock.at_least_for)  # it has expired
        except Exception:
            logger.exception(
                "Lock not released for dead process: name=%r pid=%s", lock.name, lock.pid
            )
            return True
        return age > LATE_COMMAND_SECONDS

    def _release(self, age: float) -> None:
        manager, lock = locks.using(self.lock.alias), self.lock
        info = manager.get(lock.name)
        found = [(each, lock.at_least_for) for each in self._held_of([info] if info else [])]
        if not self.is_searched and age >= CHECK_INTERVAL_SECONDS:
            until = clock.now() + MAX_SEARCH_SECONDS
            infos = takewhile(lambda _: clock.now() < until, manager.active())
            others = (info for info in infos if info.name != lock.name)
            # A lock without renewal must last until its lease expires.
            found += [(each, 0) for each in self._held_of(others) if each[1].renewed]
            self.is_searched = True
        for (name, holding), at_least_for in found:
            if manager.release_for(name, holding.token, at_least_for=at_least_for):
                task = f"{holding.holder.task_name}[{holding.holder.task_id}]"
                logger.warning(
                    "Lock released for dead process: name=%r task=%s pid=%s",
                    *(name, printable(task), lock.pid),
                )

    def _held_of(self, infos: Iterable[LockInfo]) -> Iterator[tuple[str, Holding]]:
        """Return the holds of the dead process, with the names of their locks.

        The queue lock of a message that it sent stays. So does a cooldown.
        """
        process = child_id(process_id(), self.lock.pid)
        for info in infos:
            for holding in info.holders:
                is_own = holding.holder.process == process
                if is_own and holding.timeout and not holding.metadata.get("queued"):
                    yield info.name, holding


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
