"""What a worker's main process does for executions whose own process is gone.

A child that was killed, or ran into its hard time limit, can't release. Its parent sees that
it is gone, and knows the execution's lock by the task's arguments and its holder by host,
process and task; so the lock is free at once and not at the end of its lease. Where the whole
worker is gone, the lease does it.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Any
from weakref import ref

from celery.signals import worker_init, worker_ready
from celery.utils.imports import symbol_by_name

from django_redislock.holder import host
from django_redislock.text import printable

from .ends import leave_place
from .single import Single, single_of, token_of

logger = logging.getLogger("django_redislock")

LOOK_EVERY = 0.25
"""Seconds. Celery itself may see only after 5 that a child is gone."""


@worker_init.connect
def watch_tasks(sender: Any, **kwargs: Any) -> None:
    """Have the worker's main process look after the single-instance tasks that it knows."""
    for task in sender.app.tasks.values():
        if single_of(task):
            request = symbol_by_name(task.Request)
            task.Request = type(request.__name__, (Watched, request), {})


@worker_ready.connect
def start_watching(sender: Any, **kwargs: Any) -> None:
    if any(map(single_of, sender.app.tasks.values())):
        _watch.start()


class Watched:
    """A request to the pool, whose lock does not outlive its process."""

    task: Any
    id: str
    args: Any
    kwargs: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _watch.waits(self)

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        _watch.runs(self, pid)
        super().on_accepted(pid, time_accepted)  # type: ignore[misc]  # a mixin


class Watch:
    """Looks at the last request of each child, and at those that wait here and are revoked. One
    that its child survives is over when the next one comes, or when it holds no lock any more."""

    def __init__(self) -> None:
        self._requests: dict[int, Watched] = {}
        self._waiting: dict[str, ref[Watched]] = {}
        self._thread: threading.Thread | None = None

    def waits(self, request: Watched) -> None:
        self._waiting[request.id] = ref(request)

    def runs(self, request: Watched, pid: int) -> None:
        self._waiting.pop(request.id, None)
        if pid != os.getpid():  # else it runs in a thread of this process
            self._requests[pid] = request

    def start(self) -> None:
        """Once started, does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="redislock-watch", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(LOOK_EVERY)
            for pid in [pid for pid in list(self._requests) if _is_gone(pid)]:
                _free(self._requests.pop(pid), pid)
            self._leave_revoked()

    def _leave_revoked(self) -> None:
        """Celery itself looks at a task only when its time has come."""
        from celery.worker.state import revoked  # only a worker needs it

        for task_id, request in list(self._waiting.items()):
            if request() is None or task_id in revoked:
                self._waiting.pop(task_id, None)
                _leave(request())


_watch = Watch()


def _leave(request: Watched | None) -> None:
    if request is not None:
        leave_place(request.task, request.id, request.args, request.kwargs)


def _is_gone(pid: int) -> bool:
    try:  # and leave it to the pool to wait for it
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _free(request: Watched, pid: int) -> None:
    try:
        single = single_of(request.task)
        if single:
            _release(request, pid, single)
    except Exception:
        logger.exception(
            "The lock of %s[%s] could not be released after its process was gone: it stays until "
            "its lease is over",
            *(request.task.name, printable(request.id)),
        )


def _release(request: Watched, pid: int, single: Single) -> None:
    manager, at_least_for = single.manager, single.options.at_least_for
    name = single.name_of(single.call(request.task, request.id, request.args, request.kwargs))
    info = manager.get(name)
    for holding in info.holders if info else ():
        holder = holding.holder
        is_its_own = (holder.task_id, holder.host, holder.pid) == (request.id, host(), pid)
        if not is_its_own or holding.token == token_of(request.id):
            continue
        if manager.release_for(name, holding.token, at_least_for=at_least_for):
            logger.warning(
                "%s[%s] is gone with its process %s: lock %r is released in its stead",
                *(request.task.name, printable(request.id), pid, name),
            )
