"""The tasks that every package runs, and the notes that they leave in Redis."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import redis
from celery import Celery, Task

from testproject.settings import CELERY_BROKER_URL, CELERY_RESULT_BACKEND, redis_database

from ..bench.contenders import BARE, SENT, Contender, contender

LEASE = 60  # seconds that every package is told to keep a lock at most

MAX_RETRIES = 3

IDLE = {"acks_late": True, "ignore_result": True}

LEAST = BARE, SENT

LONGEST = 60  # seconds after which a task ends that nobody let go


@dataclass(frozen=True, slots=True)
class Tasks:
    """The tasks of one package's app. The last four are nobody's single instance."""

    app: Celery
    early: Task  # takes its time; its message is acknowledged when it begins
    late: Task  # the same with `acks_late` and `reject_on_worker_lost`
    limited: Task  # the same with a hard time limit of a second
    retrying: Task  # retries itself without end
    idle: Task  # does nothing, and is acknowledged when it has
    plain: Task  # returns at once
    busy: Task  # takes its time
    collect: Task  # what a chord calls at its end
    idle_alone: Task  # as `idle`
    idle_least: dict[str, Task]  # as `idle`, each with the commands of that contender's lock
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
    with _begun(self, run) as (client, hangs):
        if hangs:
            client.blpop([f"{run}:go"], LONGEST)


def _retry(self: Task, run: str) -> None:
    with _begun(self, run) as (_, hangs):
        if hangs:
            raise self.retry(countdown=0.1)


@contextmanager
def _begun(self: Task, run: str) -> Iterator[tuple[redis.Redis, bool]]:
    with notes() as client:
        client.rpush(run, f"{self.request.id} {os.getpid()}")
        yield client, bool(client.get(f"{run}:hang"))


def _nothing() -> None:
    pass


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
