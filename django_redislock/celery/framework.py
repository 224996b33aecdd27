"""Celery as a task framework."""

from __future__ import annotations

from functools import partial
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, NoReturn

from celery._state import get_current_task
from django.core.exceptions import ImproperlyConfigured

from django_redislock.tasks.framework import wrap

from .call import TaskCall, single_of
from .execution import TaskExecution, with_autoretry
from .message import NO_REQUEST, Message, message_for
from .position import is_task, when_made
from .sending import take_queue_lock_when_sent

if TYPE_CHECKING:
    from celery import Task

    from django_redislock.tasks.options import Options
    from django_redislock.tasks.single import Single


class CeleryTasks:
    """Celery's tasks. Celery does not await coroutine functions."""

    awaits = False

    def is_task(self, target: Any) -> bool:
        """Return whether `target` is a task or its proxy."""
        return is_task(target)

    def decorate(self, options: Options, task: Any) -> Any:
        """Install the lock as soon as Celery has made the task."""
        when_made(task, partial(_install_or_disable, self, options))
        return task

    def execution(
        self, single: Single, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> TaskExecution | None:
        """Return the execution of a call for a message, or of a direct call of a task."""
        message = message_for(single)
        if message is None:
            task: Task[..., Any] | None = get_current_task()
            if task is None or single_of(task) is not single:
                return None
            message = Message(single, task, NO_REQUEST)
        added_args = 1 if args and args[0] is message.task else 0
        name, task_id = message.task.name, message.task_id
        return TaskExecution(
            TaskCall(single, args, kwargs, name, task_id, added_args, message=message)
        )


def _install_or_disable(framework: CeleryTasks, options: Options, task: Task[..., Any]) -> None:
    try:
        _install(framework, options, task)
    except Exception as error:
        _disable(task, error)
        raise


def _disable(task: Task[..., Any], error: Exception) -> None:
    """Disable the task. Celery ignores the error, and the task must not run without its lock."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise error

    task.run = task.apply_async = refuse  # type: ignore[method-assign]


def _install(framework: CeleryTasks, options: Options, task: Task[..., Any]) -> None:
    if single_of(task):
        raise ImproperlyConfigured(
            f"Task {task.name} has single_instance more than once: above and below its task"
            f" decorator (mode={options.mode!r}), or on two tasks with this name"
        )
    run = task.run
    if getattr(task, "autoretry_for", ()):  # Celery has put a wrapper of its own on the instance
        run = getattr_static(type(task), "run").__get__(task)
    alone = wrap(options, run, framework)
    task.run = with_autoretry(task, alone)  # type: ignore[method-assign]
    single = single_of(task)
    if single and options.locking.when_sent:
        take_queue_lock_when_sent(task, single)
