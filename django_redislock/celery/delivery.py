"""A single-instance task of Celery, a message that is delivered to it, and a call of it."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from inspect import Parameter, ismethod, unwrap
from typing import TYPE_CHECKING, Any

from celery import Task

from django_redislock.tasks.call import Call
from django_redislock.tasks.single import marked

from .message import NO_MESSAGE, Message

if TYPE_CHECKING:
    from celery.result import AsyncResult

    from django_redislock.tasks.single import Single


def single_of(task: Task[..., Any]) -> Single | None:
    """Return how a task runs as a single instance, or None if it does not."""
    return marked(task.run)


@dataclass(eq=False, slots=True)
class Delivery:
    """A message that Celery executes now, and what is known about its execution.

    It exists from Celery's `task_prerun` to its `task_postrun`. A header of the message can forge
    an attribute of `task.request`, but not this.
    """

    task: Task[..., Any]
    message: Message

    has_started: bool = False
    """Whether the decorated function was called, if only to find that it must not run."""

    is_running: bool = False

    resent_for_seconds: float = 0.0
    """The lease of the queue lock of the message that the execution sent in its own place."""

    earlier_result: AsyncResult[Any] | None = None
    """The result of an earlier execution of the same message, if it has ended."""

    @property
    def may_have_run(self) -> bool:
        """Whether an earlier execution of the message may have begun.

        A redelivered message that is acknowledged early was only fetched by another worker.
        """
        message = self.message
        late = message.is_redelivered and getattr(self.task, "acks_late", False)
        return bool(late or message.is_resent)


_deliveries: ContextVar[tuple[Delivery, ...]] = ContextVar(
    "django_redislock_deliveries", default=()
)
"""Those under way in this thread or greenlet, the innermost last."""


def begin_delivery(task: Task[..., Any]) -> Delivery:
    delivery = Delivery(task, Message.of(task.request))
    _deliveries.set((*_deliveries.get(), delivery))
    return delivery


def end_delivery(task: Task[..., Any]) -> Delivery | None:
    """End the innermost delivery of a task, and those inside it that Celery did not end."""
    deliveries = _deliveries.get()
    for index in range(len(deliveries) - 1, -1, -1):
        if deliveries[index].task is task:
            _deliveries.set(deliveries[:index])
            return deliveries[index]
    return None


def delivery_to(task: Task[..., Any]) -> Delivery | None:
    """Return the delivery that a call of the task's function is for.

    A call that the function makes of its own task is for none.
    """
    deliveries = _deliveries.get()
    if not deliveries or deliveries[-1].task is not task or deliveries[-1].is_running:
        return None
    return deliveries[-1]


def delivery_of(task_id: str) -> Delivery | None:
    """Return the delivery under way here that has a task id."""
    deliveries = reversed(_deliveries.get())
    return next((each for each in deliveries if each.message.task_id == task_id), None)


@dataclass(frozen=True, slots=True)
class TaskCall(Call):
    """A call of the function of a Celery task."""

    task: Task[..., Any] = field(kw_only=True)

    delivery: Delivery | None = field(default=None, kw_only=True)
    """The delivery that the call is for. None for a direct call."""

    message: Message = field(default=NO_MESSAGE, kw_only=True)

    @property
    def may_have_run(self) -> bool:
        """Whether an earlier execution of the message may have begun."""
        return self.delivery is not None and self.delivery.may_have_run

    @property
    def is_fresh_retry(self) -> bool:
        """Whether an execution, which may still run, has sent the message in its own place."""
        message = self.message
        return bool(message.retries) and not (message.is_redelivered or message.is_resent)

    @property
    def sender(self) -> Any:
        return self.task


def call_now(task: Task[..., Any], call: Call) -> TaskCall:
    """Return the call of the task's function that is made now."""
    delivery = delivery_to(task)
    message = NO_MESSAGE if delivery is None else delivery.message
    added_args = 1 if call.args and call.args[0] is task else 0
    return TaskCall(
        *(call.function, call.args, call.kwargs, task.name, message.task_id, added_args),
        task=task,
        delivery=delivery,
        message=message,
    )


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
