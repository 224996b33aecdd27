"""Above a task decorator stands no task yet, but a proxy: Celery makes the task when its app is
finalized, and of a `shared_task` one for each app."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, cast

import celery._state
from celery import Task
from celery.local import PromiseProxy, Proxy

if TYPE_CHECKING:
    from celery import Celery

state: Any = celery._state
"""What Celery knows of its apps, and does not tell the type checker."""

Install = Callable[["Task[..., Any]"], None]


def is_task(target: Any) -> bool:
    """Whether that is a task, or stands for one."""
    # By type(): to look into a task's proxy would be to create the task.
    return issubclass(type(target), (Task, Proxy))


def when_made(target: Any, install: Install) -> None:
    """Call `install` with the task, or each of the tasks, that `target` stands for."""
    if issubclass(type(target), PromiseProxy):
        target.__then__(lambda: install(target._get_current_object()))
    elif issubclass(type(target), Proxy):
        _when_shared(target, install)
    else:
        install(target)


def _when_shared(target: Any, install: Install) -> None:
    state.connect_on_app_finalize(partial(_when_finalized, target, install))
    finished = [app for app in list(state._get_active_apps()) if app.finalized]
    errors = [error for app in finished if (error := _error_of(target, install, app))]
    if errors:
        raise errors[0]


def _when_finalized(target: Any, install: Install, app: "Celery") -> None:
    # What else is called now may come before the task is made. What is pending comes after it, and
    # before anything is sent; and an error in it is not swallowed, as one of a signal would be.
    pending: Any = cast("Any", app)._pending
    pending.appendleft(PromiseProxy(lambda: _install_or_fail_later(target, install, app, pending)))


def _install_or_fail_later(target: Any, install: Install, app: "Celery", pending: Any) -> None:
    # After an error Celery leaves what is still pending: the other tasks would have no lock.
    error = _error_of(target, install, app)
    if error:
        pending.append(PromiseProxy(partial(_fail, error)))


def _error_of(target: Any, install: Install, app: "Celery") -> Exception | None:
    """Install in that app; the error if that can't be, for it concerns all apps."""
    try:
        install(_task_of(target, app))
    except Exception as error:
        return error
    return None


def _fail(error: Exception) -> NoReturn:
    raise error


def _task_of(target: Any, app: "Celery") -> Any:
    """The task in that app: the proxy looks into the current one."""
    before = state._tls.current_app
    state._set_current_app(app)
    try:
        return target._get_current_object()
    finally:
        state._set_current_app(before)
