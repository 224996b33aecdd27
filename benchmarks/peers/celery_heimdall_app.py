from celery_heimdall import HeimdallTask
from celery_heimdall.task import unique_key_for_task
from redis import Redis

from testproject.settings import redis_database

from .bodies import LEASE, define, new_app

app = new_app("celery-heimdall")


class Task(HeimdallTask):
    abstract = True

    def setup_redis(self):
        return Redis.from_url(redis_database(6))


def unique(**options):
    return app.task(base=Task, heimdall={"unique": True, "unique_timeout": LEASE}, **options)


def seconds_left(task, run):
    key = unique_key_for_task(task, [run], {}, prefix=task.heimdall_config.lock_prefix)
    left = task.heimdall_redis.pttl(key) / 1000
    return left if left > 0 else None


tasks = define(app, unique, seconds_left)
