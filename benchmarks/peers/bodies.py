"""The tasks that every package runs, and the notes that they leave in Redis."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import redis
from celery import Celery, Task

from testproject.settings import CELERY_BROKER_URL, CELERY_RESULT_BACKEND, redis_database

from ..bench.contenders import BARE, SENT, Contender, contender

LEASE = 60
"""Seconds that every package is told to keep a lock at most."""

MAX_RETRIES = 3

IDLE = {"acks_late": True, "ignore_result": True}

LEAST = BARE, SENT

LONGEST = 60
"""Seconds after which a task ends that nobody let go."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """What one package's app has."""

    app: Celery
    early: Task
    """Takes its time; its message is acknowledged when it begins."""
    late: Task
    """The same with ``acks_late`` and ``reject_on_worker_lost``."""
    limited: Task
    """The same with a hard time limit of a second."""
    retrying: Task
    """Retries itself without end."""
    plain: Task
    """Returns at once, and is nobody's single instance."""
    busy: Task
    """Takes its time, and is nobody's single instance."""
    collect: Task
    """What a chord calls at its end."""
    idle: Task
    """Does nothing, and is acknowledged when it has."""
    idle_alone: Task
    """The same, and is nobody's single instance."""
    idle_least: dict[str, Task]
    """The same, but each with the commands of a lock: those of that contender."""
    seconds_left: Callable[[Task, str], float | None]
    """For how long a task's lock would be kept from now on; None if nobody has it."""


def new_app(queue: str) -> Celery:
    app = Celery(
        queue, broker=CELERY_BROKER_URL, backend=CELERY_RESULT_BACKEND, set_as_current=False
    )
    app.conf.update(
        task_default_queue=queue,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
    )
    return app


def define(
    app: Celery,
    unique: Callable[..., Callable[[Callable[..., Any]], Task]],
    seconds_left: Callable[[Task, str], float | None],
) -> Tasks:
    """Define the tasks; `unique` is what the package's users write above a function."""
    return Tasks(
        app=app,
        early=unique(name="early", bind=True)(_work),
        late=unique(name="late", bind=True, acks_late=True, reject_on_worker_lost=True)(_work),
        limited=unique(name="limited", bind=True, time_limit=1)(_work),
        retrying=unique(name="retrying", bind=True, max_retries=MAX_RETRIES)(_retry),
        plain=app.task(name="plain")(_nothing),
        busy=app.task(name="busy", bind=True)(_work),
        collect=app.task(name="collect")(_collect),
        idle=unique(name="idle", **IDLE)(_idle),
        idle_alone=app.task(name="idle_alone", **IDLE)(_idle),
        idle_least={
            label: app.task(name=f"idle: {label}", **IDLE)(_idle_under(label)) for label in LEAST
        },
        seconds_left=seconds_left,
    )


def notes() -> redis.Redis:
    return redis.Redis.from_url(redis_database(3), decode_responses=True, socket_timeout=None)


def _work(self: Task, run: str) -> None:
    """Note the begin, and take time while the run is told to hang."""
    with notes() as client:
        client.rpush(run, f"{self.request.id} {os.getpid()}")
        if client.get(f"{run}:hang"):
            client.blpop([f"{run}:go"], LONGEST)


def _retry(self: Task, run: str) -> None:
    with notes() as client:
        client.rpush(run, f"{self.request.id} {os.getpid()}")
        if client.get(f"{run}:hang"):
            raise self.retry(countdown=0.1)


def _nothing() -> int:
    return os.getpid()


def _idle(run: str) -> None:
    pass


def _idle_under(label: str) -> Callable[[str], None]:
    def idle(run: str) -> None:
        lock = _least(label)
        lock.acquire()
        lock.release()

    return idle


@cache
def _least(label: str) -> Contender:
    return contender(label, redis_database(3), f"process:{os.getpid()}")


def _collect(results: list[Any], run: str) -> None:
    with notes() as client:
        client.rpush(run, f"collected {os.getpid()}")
