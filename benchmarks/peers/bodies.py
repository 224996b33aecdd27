"""The tasks that every package runs, their notes in Redis, and their definition with each package.

``celery -A benchmarks.peers.bodies:NAME worker`` runs the app of one package. Only that package
must be installed.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import redis
from celery import Celery, Task
from redis import Redis

from testproject.settings import CELERY_BROKER_URL, CELERY_RESULT_BACKEND, redis_database

from ..bench.contenders import REDIS_PY, contender

LEASE = 60  # seconds, for all packages

MAX_RETRIES = 3

IDLE = {"acks_late": True, "ignore_result": True}

MAX_TASK_SECONDS = 60  # until a task ends without an order


@dataclass(frozen=True)
class Tasks:
    """The tasks of one package's app. `seconds_left` returns the remaining lease of a task's lock,
    or None if it is not held."""

    app: Celery
    named: dict[str, Task]
    seconds_left: Callable[[Task, str], float | None]

    def __getitem__(self, name: str) -> Task:
        return self.named[name]


class App(Celery):
    """An app of one package. Its tasks are not shared with the apps of the other packages, which
    have tasks with the same names."""

    def task(self, *args: Any, **options: Any) -> Any:
        return super().task(*args, **options | {"shared": False})


def new_app(queue: str) -> Celery:
    app = App(queue, broker=CELERY_BROKER_URL, backend=CELERY_RESULT_BACKEND, set_as_current=False)
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
    """Define the tasks. `unique` returns the package's decorator."""
    late = {"bind": True, "acks_late": True, "reject_on_worker_lost": True}
    named = {
        "early": unique(name="early", bind=True)(_work),  # acknowledged when it begins
        "late": unique(name="late", **late)(_work),
        "retrying": unique(name="retrying", bind=True, max_retries=MAX_RETRIES)(_retry),
        "idle": unique(name="idle", **IDLE)(_idle),
        # The other tasks have no lock of the package.
        "plain": app.task(name="plain")(_nothing),
        "busy": app.task(name="busy", bind=True)(_work),
        "collect": app.task(name="collect")(_collect),
        "idle_alone": app.task(name="idle_alone", **IDLE)(_idle),
        "idle_by_hand": app.task(name="idle_by_hand", **IDLE)(_idle_by_hand),
    }
    return Tasks(app, named, seconds_left)


def notes() -> redis.Redis:
    return redis.Redis.from_url(redis_database(3), decode_responses=True, socket_timeout=None)


def _work(self: Task, run: str) -> None:
    """Note the begin, and wait for an order if the run's tasks hang."""
    with _begun(self, run) as (client, hangs):
        if hangs:
            client.blpop([f"{run}:go"], MAX_TASK_SECONDS)


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


def _idle_by_hand(run: str) -> None:
    with contender(REDIS_PY, redis_database(3), run):
        pass


def _collect(results: list[Any], run: str) -> None:
    with notes() as client:
        client.rpush(run, f"collected {os.getpid()}")


@cache
def tasks_of(name: str) -> Tasks:
    return MAKERS[name]()


def __getattr__(name: str) -> Celery:
    if name not in MAKERS:
        raise AttributeError(name)
    return tasks_of(name).app


def _while_executing() -> Tasks:
    from django_redislock import single_instance

    app = new_app("while-executing")

    def unique(**options):
        alone = single_instance(key=f"{options['name']}:while:{{run}}", timeout=LEASE)
        return lambda function: app.task(**options)(alone(function))

    return define(app, unique, lambda task, run: _ours_left(f"{task.name}:while:{run}"))


def _until_executed() -> Tasks:
    from django_redislock import single_instance

    app = new_app("until-executed")

    def unique(**options):
        alone = single_instance(
            mode="until_executed",
            key=f"{options['name']}:until:{{run}}",
            timeout=LEASE,
            queue_timeout=LEASE,
        )
        return lambda function: alone(app.task(**options)(function))

    return define(app, unique, lambda task, run: _ours_left(f"{task.name}:until:{run}"))


def _celery_once() -> Tasks:
    from celery_once import QueueOnce

    app = new_app("celery-once")
    app.conf.ONCE = {
        "backend": "celery_once.backends.Redis",
        "settings": {"url": redis_database(4), "default_timeout": LEASE},
    }
    unique = partial(app.task, base=QueueOnce, once={"graceful": True})
    return define(app, unique, lambda task, run: _left(4, task.get_key([run])))


def _celery_singleton() -> Tasks:
    from celery_singleton import Singleton

    app = new_app("celery-singleton")
    app.conf.singleton_backend_url = redis_database(5)
    unique = partial(app.task, base=Singleton, lock_expiry=LEASE)
    return define(app, unique, lambda task, run: _left(5, task.generate_lock(task.name, [run])))


def _celery_heimdall() -> Tasks:
    from celery_heimdall import HeimdallTask
    from celery_heimdall.task import unique_key_for_task

    class Task(HeimdallTask):
        abstract = True

        def setup_redis(self):
            return Redis.from_url(redis_database(6))

    def left(task, run):
        prefix = task.heimdall_config.lock_prefix
        return _left(6, unique_key_for_task(task, [run], {}, prefix=prefix))

    app = new_app("celery-heimdall")
    options = {"unique": True, "unique_timeout": LEASE}
    return define(app, partial(app.task, base=Task, heimdall=options), left)


MAKERS = {
    "while_executing": _while_executing,
    "until_executed": _until_executed,
    "celery_once": _celery_once,
    "celery_singleton": _celery_singleton,
    "celery_heimdall": _celery_heimdall,
}


def _ours_left(name: str) -> float | None:
    from django_redislock import locks

    info = locks.get(name)
    return info.ttl if info else None


def _left(database: int, key: Any) -> float | None:
    with Redis.from_url(redis_database(database)) as client:
        left = client.pttl(key) / 1000
    return left if left > 0 else None
