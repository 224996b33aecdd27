"""Finds the tasks of a decorator that is above a task decorator.

Celery has not made the task then. It makes the task when its app is finalized, and makes a
`shared_task` once for each app. Until then, a proxy stands for the task.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, cast

import celery._state
from celery import Task
from celery.local import PromiseProxy, Proxy

if TYPE_CHECKING:
    from celery import Celery

state: Any = celery._state
"""Celery's apps. Its type stubs do not describe this module."""

Install = Callable[["Task[..., Any]"], None]


def is_task(target: Any) -> bool:
    """Return whether `target` is a task or its proxy."""
    # An attribute of the proxy would create the task.
    return issubclass(type(target), (Task, Proxy))


def when_made(target: Any, install: Install) -> None:
    """Call `install` with each task that `target` stands for, as soon as Celery has made it."""
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
    # Celery calls the functions that are connected to this event in no certain order, so the task
    # may not exist yet. It evaluates `_pending` afterwards, and does not catch an error there.
    pending: Any = cast("Any", app)._pending
    pending.appendleft(PromiseProxy(lambda: _install_or_fail_later(target, install, app, pending)))


def _install_or_fail_later(target: Any, install: Install, app: "Celery", pending: Any) -> None:
    # Celery stops at the first error. The other tasks would have no lock.
    error = _error_of(target, install, app)
    if error:
        pending.append(PromiseProxy(partial(_fail, error)))


def _error_of(target: Any, install: Install, app: "Celery") -> Exception | None:
    """Install in an app, and return the error. The other apps must not miss the lock for it."""
    try:
        install(_task_of(target, app))
    except Exception as error:
        return error
    return None


def _fail(error: Exception) -> NoReturn:
    raise error


def _task_of(target: Any, app: "Celery") -> Any:
    """Return the task in an app. The proxy returns the task of the current app."""
    before = state._tls.current_app
    state._set_current_app(app)
    try:
        return target._get_current_object()
    finally:
        state._set_current_app(before)
