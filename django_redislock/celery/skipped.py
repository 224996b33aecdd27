"""The record of a task that was skipped, next to its result.

The result is None, and other tasks return None, too. So the record is an empty group among the
children of the result. Celery stores the children together with the result, and ignores an empty
group.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from celery import Task
from celery.result import AsyncResult, EagerResult, GroupResult

from django_redislock.tasks.skipped import result_was_skipped

SKIPPED_ID = "redislock:skipped"
"""The id of the group."""

MAX_EAGER = 1000

eager_ids: deque[str] = deque(maxlen=MAX_EAGER)
"""The ids of tasks that were called in this process and skipped. Their results are not stored."""


def record_skip(task: Task[..., Any]) -> None:
    """Record that the message that is executed now was skipped."""
    request: Any = task.request
    if request.is_eager:
        eager_ids.append(str(request.id))
    elif isinstance(request.children, list):  # else it is forged, and Celery stores no result
        # Not add_trail(), which has no effect without the task's option `trail`.
        request.children.append(GroupResult(SKIPPED_ID, [], app=task.app))


@result_was_skipped.register(EagerResult)
def _(result: Any) -> bool:
    return str(result.id) in eager_ids


@result_was_skipped.register(AsyncResult)
def _(result: Any) -> bool:
    children = result.children or ()
    return any(each.id == SKIPPED_ID for each in children)
