"""The Celery app of the beats that the tests start.

A beat's messages are not for a worker: the tests read them from the queue of the broker. Each
message has the pid of the beat that sent it in its headers.
"""

import os
import signal
from itertools import count
from typing import Any

import django
from celery import Celery
from celery.schedules import crontab
from celery.signals import after_task_publish, before_task_publish

from django_redislock.celery import beat

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

LEASE = float(os.environ.get("BEATS_LEASE", "2"))

QUEUE = "beats"

app = Celery("beats", set_as_current=False)
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.update(
    task_default_queue=QUEUE,
    result_expires=None,
    worker_prefetch_multiplier=1,
    beat_schedule={
        "every second": {"task": "beats.second", "schedule": 1.0},
        "every five seconds": {"task": "beats.five", "schedule": 5.0},
        "every minute": {"task": "beats.minute", "schedule": crontab()},
    },
)


class PersistentScheduler(beat.PersistentScheduler):
    lock_timeout = LEASE


if "django_celery_beat" in django.conf.settings.INSTALLED_APPS:

    class DatabaseScheduler(beat.DatabaseScheduler):
        lock_timeout = LEASE


@before_task_publish.connect
def note_pid(headers: dict[str, Any], **_: Any) -> None:
    headers["beat_pid"] = os.getpid()


sent = count(1)


@after_task_publish.connect
def die(**_: Any) -> None:
    """Be killed after a message was sent, and before that is recorded."""
    if next(sent) == int(os.environ.get("BEATS_DIE_AFTER", "0")):
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="beats.second")
def second() -> None: ...


@app.task(name="beats.five")
def five() -> None: ...


@app.task(name="beats.minute")
def minute() -> None: ...
