"""A backend of `django.tasks` that takes a queue lock when a task is enqueued.

The id of a task is known only after the wrapped backend has enqueued it. Until then a temporary
queue lock shows that the task is being sent. Then the queue lock of that id takes it over, or in a
database transaction, a second temporary one until the commit. A worker can start the task before
that, and waits for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import lru_cache, partial
from secrets import token_hex
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.utils import timezone
from django.utils.module_loading import import_string
from redis.exceptions import RedisError

from django_redislock.lock_types import QueueLock
from django_redislock.text import error_text

from .conflict import Conflict
from .django import (
    PACKAGES,
    POLL_SECONDS,
    SENDING,
    TRANSACTION_SECONDS,
    being_sent,
    call_of,
    check_options,
    is_being_sent,
)
from .single import Call, marked

logger = logging.getLogger("django_redislock")

SENDING_SECONDS = 10
"""The lease of the queue lock until the wrapped backend has enqueued the task."""

NO_RESULT = (
    NotImplementedError,
    *(package.exceptions.TaskResultDoesNotExist for package in PACKAGES),
)


def SingleInstanceBackend(alias: str, params: dict[str, Any]) -> Any:
    """Return the backend that ``OPTIONS["BACKEND"]`` names, with queue locks.

    It is an instance of a subclass of that backend, because workers check its class. The backend
    gets the other ``OPTIONS``.

    Args:
        alias: The alias in ``TASKS``.
        params: Its settings.

    Raises:
        django.core.exceptions.ImproperlyConfigured: ``OPTIONS["BACKEND"]`` is missing or wrong.
    """
    options = dict(params.get("OPTIONS", {}))
    path = options.pop("BACKEND", None)
    try:
        backend = _with_queue_locks(path)
    except (ImportError, AttributeError, TypeError) as error:
        raise ImproperlyConfigured(
            f"TASKS[{alias!r}]['OPTIONS']['BACKEND'] must be the path of the backend that"
            f" SingleInstanceBackend wraps, not {path!r}: {error}"
        ) from error
    return backend(alias, {**params, "OPTIONS": options})


@lru_cache
def _with_queue_locks(path: str) -> Any:
    backend = import_string(path)
    return type(backend.__name__, (QueueLocks, backend), {"__module__": backend.__module__})


class QueueLocks:
    """The part that is added to a backend."""

    has_queue_locks = True

    def validate_task(self, task: Any) -> None:
        """Validate a task. Options that cannot work are refused when ``@task`` is applied."""
        if single := marked(task.func):
            check_options(single.options)
        super().validate_task(task)  # type: ignore[misc]  # a mixin

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue a task, or return the result of the task that is queued or runs."""
        enqueue = partial(super().enqueue, task, args, kwargs)  # type: ignore[misc]  # a mixin
        single = marked(task.func)
        if single is None or not single.options.locking.when_sent:
            return enqueue()
        call = call_of(single, task, args, kwargs)
        conflict = Conflict(call, single.name_of(call))
        sending = _temporary_lock(conflict.name, call)
        while not sending.acquire(SENDING_SECONDS):
            while (is_held := conflict.look()) and _is_with_unknown(conflict):
                time.sleep(POLL_SECONDS)
            if is_held:  # else it was released in the meantime
                return self._give_way(conflict, task, enqueue)
        return _enqueue_with(sending, task, call, enqueue)

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Async version of `enqueue()`."""
        single = marked(task.func)
        if single is None or not single.options.locking.when_sent:
            return await super().aenqueue(task, args, kwargs)  # type: ignore[misc]  # a mixin
        return await sync_to_async(self.enqueue)(task, args, kwargs)

    def _give_way(self, conflict: Conflict, task: Any, enqueue: Callable[[], Any]) -> Any:
        """Return the result of the other task, unless `on_conflict` says something else."""
        task_id, call = conflict.error.task_id, conflict.call
        if task_id is None:  # only a task has a result
            return enqueue()
        if call.single.options.on_conflict == "raise":
            raise conflict.error
        conflict.skip()
        try:
            return self.get_result(task_id)  # type: ignore[attr-defined]  # a mixin
        except NO_RESULT:  # the backend stores none, or its transaction is not committed
            framework = PACKAGES[0]
            return framework.TaskResult(
                task=task,
                id=task_id,
                status=framework.TaskResultStatus.READY,
                enqueued_at=None,
                started_at=None,
                finished_at=None,
                last_attempted_at=None,
                args=list(call.sent_args),
                kwargs=call.kwargs,
                backend=self.alias,  # type: ignore[attr-defined]  # a mixin
                errors=[],
                worker_ids=[],
            )


def _is_with_unknown(conflict: Conflict) -> bool:
    """Return whether the holder is a task that is being sent, so that its id is not known yet."""
    return conflict.holding is not None and is_being_sent(conflict.holding)


def _temporary_lock(name: str, call: Call) -> QueueLock:
    """Return a queue lock whose token only this process knows."""
    lock, task = call.single.lock(name, call), (call.name, call.task_id)
    return QueueLock(lock, f"queued-{token_hex(16)}", task, **{SENDING: True})


def _enqueue_with(sending: QueueLock, task: Any, call: Call, enqueue: Callable[[], Any]) -> Any:
    """Enqueue a task under its temporary queue lock, and keep the lock until the task starts."""
    before, is_queued = being_sent.set(sending), False
    try:
        result = enqueue()
        is_queued = not result.is_finished  # the immediate backend has run it
    finally:
        being_sent.reset(before)
        if not is_queued:
            with suppress(RedisError):  # it expires
                sending.release()
    if is_queued:
        _keep(sending, replace(call, task_id=str(result.id)), task.run_after)
    return result


def _keep(sending: QueueLock, call: Call, run_after: datetime | None) -> None:
    queue_lock = call.single.queue_lock(sending.lock, call)
    seconds = call.single.options.max_queue_seconds
    if run_after:
        seconds += max(0.0, (run_after - timezone.now()).total_seconds())
    if transaction.get_connection().in_atomic_block:  # a rollback can make the task disappear
        uncommitted = _temporary_lock(sending.lock.name, call)
        _pass_on(sending, uncommitted, TRANSACTION_SECONDS)
        transaction.on_commit(partial(_pass_on, uncommitted, queue_lock, seconds))
    else:
        _pass_on(sending, queue_lock, seconds)


def _pass_on(before: QueueLock, after: QueueLock, seconds: float) -> None:
    try:
        after.take_over(before.token, seconds)
    except RedisError as error:  # the task is enqueued
        logger.warning(
            "Queue lock not kept: task=%s name=%r error=%s",
            *(after.task[0], after.lock.name, error_text(error)),
        )
