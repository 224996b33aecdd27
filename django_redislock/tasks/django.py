"""`django.tasks` as a task framework, with any of its backends."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from django.core.checks import Error, register
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_redislock import clock
from django_redislock.identity import running_task
from django_redislock.lock_types import QueueLock
from django_redislock.snapshots import Holding

from .conflict import Conflict
from .decorator import decorated, wrap
from .execution import Execution, Stack
from .options import Options
from .single import Call, Single, marked

PACKAGES: list[Any] = []
"""Django's framework (since Django 6.0), and its backport, which some backends are made with."""

for name in ("django.tasks", "django_tasks"):
    with suppress(ImportError):  # not installed, or an early version of the backport
        for part in ("base", "exceptions", "signals"):
            import_module(f"{name}.{part}")
        PACKAGES.append(import_module(name))

TASK_CLASSES = tuple(package.base.Task for package in PACKAGES)

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


runs: Stack[Run] = Stack("django_redislock_runs")
"""The tasks that are run. The immediate backend nests them."""


def begin_run(task_result: Any, **_: Any) -> None:
    """Note that a backend runs a task."""
    runs.push(Run(task_result))
    running_task.set((task_result.task.module_path, task_result.id))


def end_run(task_result: Any, **_: Any) -> None:
    """Note that a task has ended."""
    runs.pop(lambda run: run.result.id == task_result.id)
    outer = runs.items[-1].result if runs.items else None
    running_task.set((outer.task.module_path, outer.id) if outer else None)
    task = task_result.task
    single = marked(task.func) if task_result.status == "FAILED" else None
    # Perhaps it failed before its function was called.
    if single is not None and single.options.locking.when_sent:
        args, kwargs = task_result.args, task_result.kwargs
        call = call_of(single, task, args, kwargs, str(task_result.id))
        single.release_queue_locks(call, map(single.name_of, [call]))


for package in PACKAGES:
    package.signals.task_started.connect(begin_run)
    package.signals.task_finished.connect(end_run)


being_sent: ContextVar[QueueLock | None] = ContextVar("django_redislock_being_sent", default=None)
"""The temporary queue lock of the task that this thread enqueues, and may run at once."""

SENDING = "sending"
"""The mark of a temporary queue lock in its metadata."""

TRANSACTION_SECONDS = 60
"""The lease of the queue lock until the commit of the transaction that enqueues the task."""

POLL_SECONDS = 0.02


def is_being_sent(holding: Holding, task_id: str | None = None) -> bool:
    """Return whether the holder is a task that is being sent, with this id or an unknown one."""
    return bool(holding.metadata.get(SENDING)) and holding.holder.task_id in (None, task_id)


def call_of(single: Single, task: Any, args: Any, kwargs: Any, task_id: str | None = None) -> Call:
    """Return the call of a task that is enqueued with these arguments."""
    added = (None,) if task.takes_context else ()
    name = task.module_path
    # A backend makes a copy of the task. A receiver of signals knows the task of the module.
    return Call(
        *(single, (*added, *args), kwargs, name, task_id, len(added)), task=import_string(name)
    )


class TaskExecution(Execution):
    """The execution of a task by a backend."""

    def _settle(self, conflict: Conflict, must_run: bool = False) -> dict[str, str] | None:
        """Skip the task, and return the record of that, which becomes its return value."""
        super()._settle(conflict)
        return {SKIPPED: str(conflict.error)} if self.call.task_name else None  # a direct call

    def _find_queue_lock(self, name: str) -> None:
        """Wait until the sender of the task knows its id. Without an id, use any queue lock.

        The call is then direct, or the backend does not send the signal `task_started`.
        """
        until = clock.now() + TRANSACTION_SECONDS
        while not self.call.other_queue_token and clock.now() < until:
            info = self.single.manager.get(name)
            holders = info.holders if info else ()
            if any(is_being_sent(each, self.call.task_id) for each in holders):
                time.sleep(POLL_SECONDS)
                continue
            queued = [each for each in holders if each.metadata.get("queued")]
            if queued and not self.call.task_id:
                self.call.other_queue_token = queued[0].token
            break


class DjangoTasks:
    """The tasks of `django.tasks`."""

    def is_task(self, target: Any) -> bool:
        """Return whether `target` is a task."""
        return issubclass(type(target), TASK_CLASSES)

    def decorate(self, options: Options, task: Any) -> Any:
        """Return the task with another function."""
        check_options(options)
        backend = task.get_backend()
        if options.locking.when_sent and not getattr(backend, "has_queue_locks", False):
            raise ImproperlyConfigured(
                f"single_instance with mode={options.mode!r} locks when the task is enqueued. For"
                f" that, the BACKEND of TASKS[{task.backend!r}] must be"
                " 'django_redislock.tasks.SingleInstanceBackend', around"
                f" {type(backend).__module__}.{type(backend).__qualname__}"
            )
        return replace(task, func=wrap(options, task.func, self, int(task.takes_context)))

    def execution(
        self, single: Single, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> TaskExecution | None:
        """Return the execution of a call that a backend makes for the task that it runs."""
        run = runs.items[-1] if runs.items else None
        if run is None or run.has_begun or marked(run.result.task.func) is not single:
            if single.framework is not self:
                return None
            return TaskExecution(Call(single, args, kwargs, added_args=single.added_args))
        check_options(single.options)
        run.has_begun = True
        task, task_id = run.result.task, str(run.result.id)
        call = Call(
            *(single, args, kwargs, task.module_path, task_id, int(task.takes_context)),
            task=import_string(task.module_path),
        )
        sending = being_sent.get() if single.options.locking.when_sent else None
        if sending is not None:
            call.other_queue_token = sending.token
        return TaskExecution(call)


def check_options(options: Options) -> None:
    """Check that a backend of `django.tasks` can do what the options say.

    Raises:
        ImproperlyConfigured: It cannot.
    """
    if options.on_conflict in ("retry", "replace"):
        wanted = f"on_conflict={options.on_conflict!r}"
    elif options.locking.separate:
        wanted = f"mode={options.mode!r}"
    elif options.hold_on_retry:
        wanted = "hold_on_retry=True"
    else:
        return
    raise ImproperlyConfigured(
        f"single_instance with {wanted} does not work with django.tasks, which cannot send a task"
        " again or revoke it. Use on_conflict='skip', 'raise' or 'wait', or use Celery."
    )


@register
def check_tasks(**_: Any) -> list[Error]:
    """E004: A task has options that its framework cannot follow.

    ``@task`` above `single_instance` cannot refuse them.
    """
    errors = []
    for function in list(decorated):  # the next line can create more tasks
        module, single = sys.modules.get(function.__module__), marked(function)
        kind = type(getattr(module, function.__name__, None))  # isinstance() makes a Celery task
        if single and issubclass(kind, TASK_CLASSES):
            try:
                check_options(single.options)
            except ImproperlyConfigured as error:
                name = f"{function.__module__}.{function.__qualname__}"
                errors.append(Error(f"{name}: {error}", id="redislock.E004"))
    return errors


FRAMEWORK = DjangoTasks()
