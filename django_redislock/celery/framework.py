"""Celery as a task framework.

If the decorator is above a task decorator, Celery has not made the task yet. It makes the task
when its app is finalized, and makes a `shared_task` once for each app. Until then, a proxy stands
for the task.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from inspect import getattr_static
from typing import Any, NoReturn

import celery._state
from celery import Celery, Task
from celery.local import PromiseProxy, Proxy
from django.core.exceptions import ImproperlyConfigured

from django_redislock.tasks.decorator import wrap
from django_redislock.tasks.execution import Execution
from django_redislock.tasks.options import Options
from django_redislock.tasks.single import Single, TaskCall

from .execution import CeleryExecution, with_autoretry
from .message import message_of, single_of
from .sending import take_queue_lock_when_sent

state: Any = celery._state
"""Celery's apps and the task that it runs. Its type stubs do not describe this module."""


def is_task(target: Any) -> bool:
    """Return whether `target` is a task or its proxy."""
    # An attribute of the proxy would create the task.
    return issubclass(type(target), (Task, Proxy))


def decorate(options: Options, task: Any) -> Any:
    """Install the lock as soon as Celery has made the task."""
    install = partial(_install, options)
    if issubclass(type(task), PromiseProxy):
        task.__then__(lambda: install(task._get_current_object()))
    elif issubclass(type(task), Proxy):
        _install_in_each_app(install, task)
    else:
        install(task)
    return task


def execution(single: Single, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Execution | None:
    """Return the execution of a call of the task that Celery runs, or None."""
    running = state.get_current_task()
    # Celery does not await coroutine functions.
    if single.is_async or single_of(running) is not single:
        return None
    added_args = 1 if args and args[0] is running else 0
    call = TaskCall(single, args, kwargs, running.name, None, added_args, running)
    message = message_of(running)
    if message is None or message.execution:  # a direct call, perhaps by the function itself
        return Execution(call)
    call.task_id, call.is_expected = message.task_id, message.is_expected
    return CeleryExecution(call, message)


def _install(options: Options, task: Task[..., Any]) -> None:
    """Install the lock. Celery can ignore an error, and the task must not run without it."""
    try:
        if single_of(task):
            raise ImproperlyConfigured(
                f"Task {task.name} has single_instance more than once: above and below its task"
                f" decorator (mode={options.mode!r}), or on two tasks with this name"
            )
        run = task.run
        if getattr(task, "autoretry_for", ()):  # Celery has put its wrapper on the instance
            run = getattr_static(type(task), "run").__get__(task)
        single = Single(options, run, "celery")
        task.run = with_autoretry(task, wrap(single))  # type: ignore[method-assign]
        if options.locking.when_sent:
            take_queue_lock_when_sent(task, single)
    except Exception as error:
        task.run = task.apply_async = partial(_raise, error)  # type: ignore[method-assign]
        raise


def _raise(error: Exception, *args: Any, **kwargs: Any) -> NoReturn:
    raise error


def _install_in_each_app(install: Callable[[Any], None], proxy: Any) -> None:
    """Install a lock in each app's copy of a shared task, also in future apps."""
    state.connect_on_app_finalize(partial(_install_later, install, proxy))
    with ExitStack() as stack:  # after an error in one app, the others must not miss the lock
        for app in list(state._get_active_apps()):
            if app.finalized:
                stack.callback(lambda app: install(_task_of(proxy, app)), app)


def _install_later(install: Callable[[Any], None], proxy: Any, app: Celery) -> None:
    """Install a lock after the functions that are connected to the end of an app's setup.

    Celery calls these in no certain order, so the task may not exist yet. It evaluates `_pending`
    afterwards, and stops at the first error. So an error comes last, or other tasks would have no
    lock.
    """
    pending: Any = app._pending  # type: ignore[attr-defined]  # not in its stubs

    def install_now() -> None:
        try:
            install(_task_of(proxy, app))
        except Exception as error:
            pending.append(PromiseProxy(partial(_raise, error)))

    pending.appendleft(PromiseProxy(install_now))


def _task_of(proxy: Any, app: Celery) -> Any:
    """Return the task in an app. The proxy returns the task of the current app."""
    before = state._tls.current_app
    state._set_current_app(app)
    try:
        return proxy._get_current_object()
    finally:
        state._set_current_app(before)
