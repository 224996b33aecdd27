"""A Celery task with `single_instance`."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, ismethod, unwrap
from typing import TYPE_CHECKING, Any, cast

from celery import Task
from celery.app.autoretry import add_autoretry_behaviour

from django_redislock.tasks.single import marked

from .delivery import TaskCall

if TYPE_CHECKING:
    from django_redislock.tasks.single import Single


def single_of(task: Task[..., Any]) -> Single | None:
    """Return how a task runs as a single instance, or None if it does not."""
    return marked(task.run)


def call_of(
    single: Single, task: Task[..., Any], task_id: str | None, args: Any, kwargs: Any
) -> TaskCall:
    """Return the call of a task that is sent.

    It leaves out keyword arguments that a task class adds to its messages, and removes before it
    calls the function.
    """
    # Software that traces tasks can have wrapped the task's method.
    body = unwrap(task.run, stop=ismethod)
    sees_itself = not single.above and isinstance(getattr(body, "__self__", None), Task)
    first = (task,) if sees_itself else ()
    parameters = single.signature.parameters
    takes_any = any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())
    known = {
        name: value for name, value in (kwargs or {}).items() if takes_any or name in parameters
    }
    all_args = (*first, *(args or ()))
    return TaskCall(task.run, all_args, known, task.name, task_id or "", len(first), task=task)


class _PublicPart:
    """The public attributes of a task, with another function to run."""

    def __init__(self, task: Task[..., Any], run: Callable[..., Any]) -> None:
        self._task, self.run = task, run

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # Celery marks there that a task has its retry wrapper
            raise AttributeError(name)
        return getattr(self._task, name)


def with_autoretry(task: Task[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    """Return `run` in Celery's own wrapper for ``autoretry_for``, if the task has that option.

    A lock that is kept for a retry stands outside such a wrapper, so that it sees the `Retry`
    that was raised, instead of predicting it. The wrapper around the lock retries the errors of
    the lock itself. It passes a `Retry` on.
    """
    retrying: Any = _PublicPart(task, run)
    add_autoretry_behaviour(retrying)
    return cast("Callable[..., Any]", retrying.run)
