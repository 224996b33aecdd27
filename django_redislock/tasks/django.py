"""`django.tasks` as a task framework, with any of its backends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from django.core.checks import Error, register
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_redislock.identity import running_task

from .call import Call, runs_under
from .conflict import Conflict
from .execution import Execution
from .framework import decorated, frameworks, wrap
from .options import Options
from .single import Single, marked

PACKAGES = [name for name in ("django.tasks", "django_tasks") if find_spec(name)]
"""Django's framework (since Django 6.0), and its backport, which some backends are made with."""

TASK_CLASSES = tuple(import_module(f"{name}.base").Task for name in PACKAGES)

MAX_NESTED_RUNS = 32
"""A backend that does not report the end of its tasks must not fill the memory."""

SKIPPED = "redislock_skipped"
"""The key in the return value of a skipped task. Its value is the reason."""


def was_skipped(result: Any) -> bool:
    """Return whether a task of `django.tasks` was skipped, because another instance ran.

    Args:
        result: The `TaskResult`. If the task has not ended, refresh it first.

    Returns:
        Whether it was skipped. False if the task has not ended, or has failed.
    """
    if result.status != "SUCCESSFUL":
        return False
    return isinstance(result.return_value, dict) and SKIPPED in result.return_value


@dataclass(eq=False, slots=True)
class Run:
    """A task that a backend runs now."""

    result: Any
    """The `TaskResult`."""

    has_begun: bool = False
    """Whether the function was called. A call that it makes of itself is an ordinary call."""


_runs: ContextVar[tuple[Run, ...]] = ContextVar("django_redislock_runs", default=())
"""Those under way in this thread, the innermost last. The immediate backend nests them."""


def _set_runs(runs: tuple[Run, ...]) -> None:
    _runs.set(runs[-MAX_NESTED_RUNS:])
    result = runs[-1].result if runs else None
    running_task.set((result.task.module_path, result.id) if result else None)


def begin_run(task_result: Any, **_: Any) -> None:
    """Note that a backend runs a task."""
    _set_runs((*_runs.get(), Run(task_result)))


def end_run(task_result: Any, **_: Any) -> None:
    """Note that a task has ended, and those inside it that the backend did not end."""
    runs = _runs.get()
    for index in range(len(runs) - 1, -1, -1):
        if runs[index].result.id == task_result.id:
            _set_runs(runs[:index])
            break


for package in PACKAGES:
    signals = import_module(f"{package}.signals")
    signals.task_started.connect(begin_run)
    signals.task_finished.connect(end_run)


@dataclass(frozen=True, slots=True)
class TaskCall(Call):
    """The call that a backend makes of the function of a task."""

    task: Any = field(kw_only=True)

    @property
    def sender(self) -> Any:
        # A backend makes a copy of the task. A receiver knows the task of the module.
        return import_string(self.task.module_path)


class TaskConflict(Conflict):
    """A task whose lock is not free."""

    def skip(self) -> dict[str, str]:
        """Skip the task, and return the record of that, which becomes its return value."""
        super().skip()
        return {SKIPPED: str(self.error)}


class TaskExecution(Execution):
    """The execution of a task by a backend."""

    def _conflict(self, name: str) -> Conflict:
        return TaskConflict(self.call, name, self.single, runs_under(self.alias, name))


class DjangoTasks:
    """The tasks of `django.tasks`."""

    awaits = True

    def is_task(self, target: Any) -> bool:
        """Return whether `target` is a task."""
        return issubclass(type(target), TASK_CLASSES)

    def decorate(self, options: Options, task: Any) -> Any:
        """Return the task with another function."""
        check_options(options)
        return replace(task, func=wrap(options, task.func, above=True))

    def execution(
        self,
        single: Single,
        function: Callable[..., Any],
        alone: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> TaskExecution | None:
        """Return the execution of a call that a backend makes for the task that it runs."""
        runs = _runs.get()
        if not runs or runs[-1].has_begun:
            return None
        run, task = runs[-1], runs[-1].result.task
        if marked(task.func) is not single:
            return None
        check_options(single.options)
        run.has_begun = True
        added_args = 1 if task.takes_context else 0
        call = TaskCall(
            alone, args, kwargs, task.module_path, str(run.result.id), added_args, task=task
        )
        return TaskExecution(single, function, call)


def check_options(options: Options) -> None:
    """Check that a backend of `django.tasks` can do what the options say.

    Raises:
        ImproperlyConfigured: It cannot.
    """
    if problem := _problem(options):
        raise ImproperlyConfigured(problem)


def _problem(options: Options) -> str:
    if options.on_conflict in ("retry", "replace"):
        wanted = f"on_conflict={options.on_conflict!r}"
    elif options.locking.separate:
        wanted = f"mode={options.mode!r}"
    elif options.hold_on_retry:
        wanted = "hold_on_retry=True"
    else:
        return ""
    return (
        f"single_instance with {wanted} does not work with django.tasks, which cannot send a task"
        " again or revoke it. Use on_conflict='skip', 'raise' or 'wait', or use Celery."
    )


@register
def check_tasks(**_: Any) -> list[Error]:
    """E004: A task has options that its framework cannot follow.

    ``@task`` above `single_instance` cannot refuse them.
    """
    problems = {
        function: _problem(single.options)
        for function in decorated
        if _is_task_of_module(function) and (single := marked(function))
    }
    return [
        Error(f"{function.__module__}.{function.__qualname__}: {problem}", id="redislock.E004")
        for function, problem in problems.items()
        if problem
    ]


def _is_task_of_module(function: Callable[..., Any]) -> bool:
    module = sys.modules.get(function.__module__)
    return issubclass(type(getattr(module, function.__name__, None)), TASK_CLASSES)


frameworks.append(DjangoTasks())
