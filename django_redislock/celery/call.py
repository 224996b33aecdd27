"""The calls of single-instance tasks of Celery."""

from __future__ import annotations

from dataclasses import dataclass, field
from inspect import Parameter, ismethod, unwrap
from typing import TYPE_CHECKING, Any

from celery import Task

from django_redislock.tasks.call import Call
from django_redislock.tasks.single import marked

from .message import NO_REQUEST, Message

if TYPE_CHECKING:
    from django_redislock.tasks.single import Single


def single_of(task: Task[..., Any]) -> Single | None:
    """Return how a task runs as a single instance, or None if it does not."""
    return marked(task.run)


@dataclass(eq=False, slots=True)
class TaskCall(Call):
    """A call of the function of a Celery task."""

    message: Message = field(kw_only=True)
    """The message that the call is for. That of a direct call is empty."""

    @property
    def task(self) -> Task[..., Any]:
        return self.message.task

    @property
    def sender(self) -> Any:
        return self.message.task


def call_of(
    single: Single, task: Task[..., Any], task_id: str | None, args: Any, kwargs: Any
) -> TaskCall:
    """Return the call of a task that is sent.

    It leaves out keyword arguments that a task class adds to its messages, and removes before it
    calls the function.
    """
    # Software that traces tasks can have wrapped the task's method.
    body = unwrap(task.run, stop=ismethod)
    sees_itself = not single.framework and isinstance(getattr(body, "__self__", None), Task)
    first = (task,) if sees_itself else ()
    parameters = single.signature.parameters
    takes_any = any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())
    known = {
        name: value for name, value in (kwargs or {}).items() if takes_any or name in parameters
    }
    all_args = (*first, *(args or ()))
    return TaskCall(
        *(single, all_args, known, task.name, task_id or "", len(first)),
        message=Message(single, task, NO_REQUEST),
    )
