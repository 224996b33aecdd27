"""Ask the result backend whether the task that holds a queue lock has ended.

A task can end without releasing its queue lock, because its worker does not know it, or knows it
without `single_instance`. So this module asks whether the holder has ended, before a new task is
refused because of a queue lock. Without an answer, the new task is refused.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from celery import Task, states
from celery.backends.base import DisabledBackend
from celery.backends.rpc import RPCBackend
from celery.utils.time import maybe_iso8601, maybe_make_aware
from django.db import connections

from django_redislock import clock
from django_redislock.identity import complete_id
from django_redislock.snapshots import Holding
from django_redislock.tasks.conflict import SIMULATED
from django_redislock.text import error_text

logger = logging.getLogger("django_redislock")

RESULT_TIMEOUT_SECONDS = 1.0
"""How long a refusal waits for the result backend. Celery itself waits for minutes."""

PAUSE_SECONDS = 30.0
"""How long a result backend that did not reply in time is not asked again."""

IS_EXPECTED = "expected"
"""In the metadata of a queue lock: whether a caller chose the id of the task, or waits for it."""

STORES_LATER = "again"
"""In the metadata of a queue lock: whether an execution of the same id may store its result after
it sent the message that the queue lock belongs to."""

RESOLUTION = timedelta(milliseconds=1)
"""Redis records an acquisition in whole milliseconds. So a result that seems to be less than that
later can belong to an earlier message."""

_paused_until = 0.0
"""Until when no result backend is asked."""


def ended_queue_lock(task: Task[..., Any], queue_locks: Sequence[Holding]) -> Holding | None:
    """Return the first queue lock whose task has ended, or None if that is not known.

    Args:
        task: The task that is sent or starts. The other tasks have its app.
        queue_locks: The queue locks.
    """
    if task.app.conf.task_always_eager or clock.now() < _paused_until:
        return None
    questions = []
    for holding in queue_locks:
        task_id = complete_id(holding.holder.task_id)
        other = task.app.tasks.get(str(holding.holder.task_name), task)
        if task_id and _can_answer(other.backend) and not holding.metadata.get(SIMULATED):
            # Here, because a backend belongs to the thread that asks for it.
            questions.append((holding, task_id, other.backend))
    return _answer(questions) if questions else None


def _can_answer(backend: Any) -> bool:
    """Return whether a result backend can know the result of a task that another process sent."""
    return not isinstance(backend, (DisabledBackend, RPCBackend))


def _answer(questions: list[tuple[Holding, str, Any]]) -> Holding | None:
    """Ask in another thread, because the reply may never come."""
    global _paused_until
    found: list[Holding] = []

    def ask() -> None:
        try:
            for holding, task_id, backend in questions:
                # Not from the cache: a task can have been sent again with the same id.
                if _has_ended(holding, backend.get_task_meta(task_id, cache=False)):
                    found.append(holding)
                    return
        except Exception as error:
            logger.warning("Result of queued task is unknown: error=%s", error_text(error))
        finally:
            connections.close_all()  # a result backend in the database has opened one

    thread = threading.Thread(target=ask, name="redislock-result", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the system has no thread left
        return None
    thread.join(RESULT_TIMEOUT_SECONDS)
    if thread.is_alive():
        _paused_until = clock.now() + PAUSE_SECONDS
        logger.warning(
            "Result of queued task is unknown: error=no reply in %g s", RESULT_TIMEOUT_SECONDS
        )
    return next(iter(found), None)


def _has_ended(holding: Holding, meta: dict[str, Any]) -> bool:
    """Return whether a task with this result no longer needs its queue lock."""
    state, metadata = meta.get("status"), holding.metadata
    if state not in states.READY_STATES:
        return False
    if metadata.get(STORES_LATER) and state != states.REVOKED:
        return False
    if metadata.get(IS_EXPECTED):  # an earlier message with this id may have the result
        done: Any = maybe_iso8601(meta["date_done"])
        return maybe_make_aware(done) >= holding.acquired_at + RESOLUTION
    return True
