"""How the users of each package write a task.

``celery -A benchmarks.peers.apps:NAME worker`` runs the app of one package. Only that package has
to be installed.
"""

from functools import cache, partial
from typing import Any

from celery import Celery
from redis import Redis

from testproject.settings import redis_database

from .bodies import LEASE, Tasks, define, new_app


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
