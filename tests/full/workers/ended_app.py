"""A Celery app whose workers can have an older or newer release of the code.

`celery -A tests.full.workers.ended_app worker`. `TESTS_RELEASE` says what the worker knows.
"""

import os
from typing import Any

from celery import Celery, Task

from tests.celery_app import notes, wait

RELEASE = os.environ.get("TESTS_RELEASE", "current")
"""``"current"``, or ``"undecorated"``: without `single_instance`, or ``"renamed"``: the tasks have
other names."""

MODES = ("until_executing", "until_executed", "until_and_while_executing")

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

app = Celery("tests.ended", set_as_current=False)
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.update(worker_prefetch_multiplier=4, task_track_started=True)


def work(self: Task, run: str) -> str:
    with notes() as client:
        client.rpush(run, f"ran {self.request.id}")
    return "ran"


@app.task
def ready() -> int:
    return os.getpid()


@app.task(bind=True)
def busy(self: Task, run: str) -> str:
    return wait(self, run)


tasks: dict[str, Any] = {}

if RELEASE == "undecorated":
    for mode in MODES:
        app.task(bind=True, name=f"ended.{mode}")(work)
else:
    from django_redislock import single_instance

    suffix = ".renamed" if RELEASE == "renamed" else ""
    for mode in MODES:
        made = app.task(bind=True, name=f"ended.{mode}{suffix}")(work)
        tasks[mode] = single_instance(mode=mode, key="ended:{run}")(made)
