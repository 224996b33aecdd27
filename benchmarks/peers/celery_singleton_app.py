from celery_singleton import Singleton
from redis import Redis

from testproject.settings import redis_database

from .bodies import LEASE, define, new_app

app = new_app("celery-singleton")
app.conf.singleton_backend_url = redis_database(5)


def unique(**options):
    return app.task(base=Singleton, lock_expiry=LEASE, **options)


def seconds_left(task, run):
    with Redis.from_url(redis_database(5)) as client:
        left = client.pttl(task.generate_lock(task.name, [run])) / 1000
    return left if left > 0 else None


tasks = define(app, unique, seconds_left)
