"""Whether a task was skipped, for the results of all task frameworks."""

from functools import singledispatch
from typing import Any

from django_redislock.names import short_repr

from .decorator import frameworks


def was_skipped(result: Any) -> bool:
    """Return whether a task was skipped, because another instance ran.

    Args:
        result: The `AsyncResult` of Celery, or the `TaskResult` of `django.tasks`. If the task has
            not ended, refresh a `TaskResult` first.

    Returns:
        Whether it was skipped. False if the task has not ended, has failed, or ignores its result.

    Raises:
        TypeError: It is neither.
    """
    frameworks()  # each of them registers the types of its results
    return result_was_skipped(result)


@singledispatch
def result_was_skipped(result: Any) -> bool:
    """Return whether a task was skipped, by the type of its result."""
    raise TypeError(
        "was_skipped() takes an AsyncResult of Celery or a TaskResult of django.tasks, not"
        f" {short_repr(result)} ({type(result).__name__})"
    )
