from celery_once import QueueOnce
from redis import Redis

from testproject.settings import redis_database

from .bodies import LEASE, define, new_app

app = new_app("celery-once")
app.conf.ONCE = {
    "backend": "celery_once.backends.Redis",
    "settings": {"url": redis_database(4), "default_timeout": LEASE},
}


def unique(**options):
    return app.task(base=QueueOnce, once={"graceful": True}, **options)


def seconds_left(task, run):
    with Redis.from_url(redis_database(4)) as client:
        left = client.pttl(task.get_key([run])) / 1000
    return left if left > 0 else None


tasks = define(app, unique, seconds_left)
