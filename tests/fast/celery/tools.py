"""Helpers of the tests in this folder: apps in memory, their tasks, and running messages."""

from logging import LogRecord
from typing import Any

from celery import Celery, Task
from celery.app.trace import build_tracer
from kombu.exceptions import OperationalError

from django_redislock import locks, single_instance
from django_redislock.snapshots import LockInfo
from tests.lock_tools import start

WHEN_SENT = ["until_executing", "until_executed", "until_and_while_executing"]
"""The modes that take a queue lock when a task is sent."""


class OwnCelery(Celery):
    """An app whose tasks are not shared with the other apps of this process."""

    def task(self, *args: Any, **options: Any) -> Any:
        return super().task(*args, **{"shared": False, **options})


class Unsendable(Task):
    """A task whose messages cannot be sent."""

    def apply_async(self, *args: Any, **options: Any) -> Any:
        raise OperationalError("no broker")


def own_app(name: str = "tests.own", *, backend: str = "cache+memory://") -> OwnCelery:
    return OwnCelery(name, broker="memory://", backend=backend, set_as_current=False)


def make_task(app, name, mode="until_executed", body=lambda: "ran", task=None, **options) -> Any:
    """Return a task that takes the queue lock `name`; `task` are options of the task itself."""

    def work(*args, **kwargs):
        return body()

    made = app.task(name=f"tests.{name}", **(task or {}))(work)
    return single_instance(mode=mode, key=lambda *args, **kwargs: name, **options)(made)


def decorated(make, function, **options) -> Any:
    """Put `single_instance` above the task decorator `make` if the mode needs it, else below."""
    decorate = single_instance(**options)
    if options.get("mode") in WHEN_SENT:
        return decorate(make(function))
    return make(decorate(function))


def run_message(
    app: Celery,
    task: Task,
    *args: Any,
    headers: dict[str, Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    redelivered: bool = False,
    retries: int = 0,
    traced: bool = False,
    task_id: str = "own",
) -> Any:
    """Execute a message as a worker does and return the result.

    `traced` adds a header with the name "headers", as software that traces tasks does.
    """
    task = app.tasks[task.name]
    info = {"exchange": "", "routing_key": "celery", "redelivered": redelivered}
    request = {"id": task_id, "retries": retries, "is_eager": False, "delivery_info": info}
    request |= {"args": args, "kwargs": kwargs or {}}
    request |= {**(headers or {}), "headers": {"trace": "1"}} if traced else {"headers": headers}
    return build_tracer(task.name, task, app=app)(task_id, args, kwargs or {}, request).retval


def elsewhere(send: Any) -> Any:
    """Return the result of `send` in another thread, which holds nothing."""
    return start(send).result(60)


def held_by(name: str) -> dict[str, str | None]:
    """Return the id of the holder's task for each lock whose name begins with `name`."""
    return {info.name: info.holder.task_id for info in locks.active(f"{name}*")}


def queue_lock(name: str, mode: str = "until_executed") -> LockInfo | None:
    return locks.get(f"{name}:queued" if mode == "until_and_while_executing" else name)


def state_of(name: str) -> tuple[str | None, str | None]:
    """Return the ids of the tasks that hold the lock and the separate queue lock."""
    held, queued = locks.get(name), locks.get(f"{name}:queued")
    return held and held.holder.task_id, queued and queued.holder.task_id


def logged(caplog: Any, *texts: str) -> list[LogRecord]:
    """Return the log records that contain all of `texts`. Other threads may log others."""
    return [each for each in caplog.records if all(text in each.getMessage() for text in texts)]


def outcomes(name: str, task_id: str) -> list[str]:
    """Return the outcomes that the history has for a task, the earliest first."""
    events = reversed(locks.history(name))
    return [event.outcome for event in events if event.holder.task_id == task_id]
