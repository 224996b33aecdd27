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
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any
from weakref import ref

from celery.signals import worker_init, worker_ready
from celery.utils.imports import symbol_by_name
from redis.exceptions import RedisError

from django_redislock import clock
from django_redislock.engine.fork_safety import fork_guard
from django_redislock.identity import child_id, process_id, recorded_id
from django_redislock.snapshots import Holding, LockInfo
from django_redislock.text import error_text, printable

from .ends import release_queue_lock_of
from .message import Message, id_of
from .single import Single, queue_lock_token, single_of

logger = logging.getLogger("django_redislock")

LOOK_EVERY = 0.25
"""Seconds. Celery itself may see only after 5 that a child is gone."""

LINGER = 2.0
"""Seconds for which what a child asked for may still come to Redis after the child is gone."""

LONGEST_SEARCH = 1.0
"""Seconds for which all locks are looked through at most. A fork may wait for it."""


@worker_init.connect
def watch_tasks(sender: Any, **kwargs: Any) -> None:
    """Have the worker's main process look after the single-instance tasks that it knows."""
    for task in sender.app.tasks.values():
        if single_of(task):
            request = symbol_by_name(task.Request)
            if not issubclass(request, Watched):  # as where a worker starts again in one process
                task.Request = type(request.__name__, (Watched, request), {})


@worker_ready.connect
def start_watching(sender: Any, **kwargs: Any) -> None:
    if any(map(single_of, sender.app.tasks.values())):
        _watch.start(sender.pool)


class Watched:
    """A request to the pool, whose lock does not outlive its process."""

    task: Any
    id: str
    args: Any
    kwargs: Any
    request_dict: dict[str, Any]
    has_failed = False
    """Whether its child lived to tell that it failed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _watch.waits(self)

    @property
    def is_in_pool(self) -> bool:
        """Whether a child may have begun with it."""
        return getattr(self, "_apply_result", None) is not None

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        _watch.runs(self, pid)
        super().on_accepted(pid, time_accepted)  # type: ignore[misc]  # a mixin

    def on_failure(self, *args: Any, return_ok: bool = False, **options: Any) -> None:
        self.has_failed = return_ok
        super().on_failure(*args, return_ok=return_ok, **options)  # type: ignore[misc]  # a mixin

    @property
    def has_ended(self) -> bool:
        """Whether its child lived to tell how it ended."""
        from celery.worker.state import successful_requests  # only a worker needs it

        return self.has_failed or self.id in successful_requests


class Watch:
    """Looks at the last request of each child, and at those that wait here and are revoked. One
    that its child survives is over when the next one comes, or when it holds no lock any more.

    Of a child that is killed as it begins, Celery may never hear that it did: then it gives the
    request to another child, which meets the lock of the first. So it also looks at those that
    the dead may have had.
    """

    def __init__(self) -> None:
        self._requests: dict[int, Watched] = {}
        self._waiting: dict[str, ref[Watched]] = {}
        self._just_begun: deque[Watched] = deque()
        self._pool: Any = None
        self._children: set[int] = set()
        self._gone: list[Gone] = []
        self._looking = threading.Lock()
        self._thread: threading.Thread | None = None

    def waits(self, request: Watched) -> None:
        self._waiting[request.id] = ref(request)

    def runs(self, request: Watched, pid: int) -> None:
        self._waiting.pop(request.id, None)
        if self._is_child(pid):
            self._requests[pid] = request
            self._just_begun.append(request)

    def _is_child(self, pid: int) -> bool:
        # Threads run in this very process, and a greenlet calls itself by the id of its object.
        return pid != os.getpid() and not getattr(self._pool, "is_green", False)

    def start(self, pool: Any) -> None:
        """Once started, does nothing."""
        if self._thread is None:
            self._pool = pool
            self._note_children()
            self._thread = threading.Thread(target=self._run, name="redislock-watch", daemon=True)
            self._thread.start()
            # A cold shutdown ends as soon as the last child is gone.
            atexit.register(self._look_at_exit, os.getpid())

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(LOOK_EVERY)
            try:
                with fork_guard:
                    self._look()
            except Exception:
                logger.exception("Check for dead pool processes failed, will retry")

    def _look_at_exit(self, started_in: int) -> None:
        if os.getpid() == started_in:  # and not in a child, whose siblings are not its own
            self._look()

    def _look(self) -> None:
        with self._looking:
            for pid in [pid for pid in list(self._requests) if _is_gone(pid)]:
                request, dead = self._requests.pop(pid), {_id_of_child(pid)}
                self._gone.append(Gone(request, dead, clock.now(), searches=True))
            self._suspect()
            self._gone = [gone for gone in self._gone if not gone.is_settled()]
            self._leave_revoked()

    def _suspect(self) -> None:
        """Have the requests looked at that the children which died just now may have begun."""
        suspects, dead = self._maybe_unheard(), self._just_died()
        if dead:
            now = clock.now()
            self._gone += [Gone(each, dead, now, linger=LOOK_EVERY) for each in suspects]

    def _maybe_unheard(self) -> list[Watched]:
        waiting = [request() for request in list(self._waiting.values())]
        begun = [self._just_begun.popleft() for _ in range(len(self._just_begun))]
        return [*(each for each in waiting if each is not None and each.is_in_pool), *begun]

    def _just_died(self) -> set[str]:
        self._note_children()
        dead = {pid for pid in self._children if _is_gone(pid)}
        self._children -= dead
        return set(map(_id_of_child, dead))

    def _note_children(self) -> None:
        with suppress(AttributeError):  # the pool is there no more
            pids = self._pool.info.get("processes", ())
            # A child has none until it is forked; and a pool without children names its own.
            self._children.update(pid for pid in pids if pid and pid != os.getpid())

    def _leave_revoked(self) -> None:
        """Celery itself looks at a task only when its time has come."""
        from celery.worker.state import revoked  # only a worker needs it

        for task_id, request in list(self._waiting.items()):
            if request() is None or task_id in revoked:
                self._waiting.pop(task_id, None)
                _leave(request())


@dataclass(slots=True)
class Gone:
    """An execution whose process is dead."""

    request: Watched
    processes: Collection[str]
    """The ids of dead processes. One of them may have run the execution."""

    since: float
    linger: float = LINGER
    searches: bool = False
    """Whether all locks are yet to be looked through."""

    failed: bool = False
    released: set[str] = field(default_factory=set)
    """The lock tokens that were released. None is released twice."""

    def is_settled(self) -> bool:
        """Release what it holds; whether there is no use in looking again."""
        single = single_of(self.request.task)
        if single is None:
            return True
        try:
            self._release(single)
        except RedisError as error:
            return self._has_failed(single, error)
        except Exception:
            logger.exception("Lock not released for dead process: task=%s", self)
            return True
        return clock.now() - self.since > self.linger

    def _release(self, single: Single) -> None:
        manager, stays = single.manager, single.options.at_least_for
        for name, each in self._under_its_name(single) or self._elsewhere(single):
            if manager.release_for(name, each.token, at_least_for=stays):
                self.released.add(each.token)
                logger.warning(
                    "Lock released for dead process: name=%r task=%s pid=%s",
                    *(name, self, each.holder.pid),
                )

    def _under_its_name(self, single: Single) -> list[tuple[str, Holding]]:
        request = self.request
        call = single.call(request.task, id_of(request) or "", request.args, request.kwargs)
        try:
            name = single.name_of(call)
        except Exception:  # the function sees other arguments than its message has
            return []
        info = single.manager.get(name)
        return self._held_of([info] if info else [])

    def _elsewhere(self, single: Single) -> list[tuple[str, Holding]]:
        """What it held under other names, once; by then its child may have told of its end."""
        if single.options.at_least_for:
            return []  # which of them are to stay for so long is not known
        if not self.searches or clock.now() - self.since < LOOK_EVERY or self.request.has_ended:
            return []
        until = clock.now() + LONGEST_SEARCH
        infos = takewhile(lambda _: clock.now() < until, single.manager.active())
        # What nobody renewed was to stay, whether its holder lives or not.
        found = [(name, each) for name, each in self._held_of(infos) if each.renewed]
        self.searches = False
        return found

    def _held_of(self, infos: Iterable[LockInfo]) -> list[tuple[str, Holding]]:
        return [(info.name, each) for info in infos for each in info.holders if self._held(each)]

    def _held(self, holding: Holding) -> bool:
        """Return whether the dead process holds that for the execution.

        A queue lock of a message that the execution sent again stays. So does a cooldown.
        """
        holder, task_id = holding.holder, id_of(self.request) or ""
        is_its_own = holder.process in self.processes and holder.task_id == recorded_id(task_id)
        stays = not holding.timeout or holding.token in (queue_lock_token(task_id), *self.released)
        return is_its_own and not stays

    def _has_failed(self, single: Single, error: RedisError) -> bool:
        if not self.failed:
            logger.warning(
                "Lock not yet released for dead process: task=%s error=%s",
                *(self, error_text(error)),
            )
        self.failed = True
        return clock.now() - self.since > single.lock("unused").timeout  # it has run out by now

    def __str__(self) -> str:
        return f"{self.request.task.name}[{printable(self.request.id)}]"


_watch = Watch()


def _leave(request: Watched | None) -> None:
    if request is not None:
        release_queue_lock_of(request.task, Message.of(request, request.request_dict))


def _id_of_child(pid: int) -> str:
    return child_id(process_id(), pid)


def _is_gone(pid: int) -> bool:
    # macOS has none before Python 3.13: there it is gone when the pool has waited for it.
    if not hasattr(os, "waitid"):
        return not _exists(pid)
    try:  # and leave it to the pool to wait for it
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
