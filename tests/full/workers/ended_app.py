"""A Celery app of which a worker can have a release of the code with other names of the tasks.

`celery -A tests.full.workers.ended_app worker`. The variable `TESTS_RELEASE` selects the release.
"""

import os
from typing import Any

from celery import Celery, Task

from django_redislock import single_instance
from tests.celery_app import note, wait

MODES = ("until_executing", "until_executed", "until_and_while_executing")

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

app = Celery("tests.ended", set_as_current=False)
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.update(worker_prefetch_multiplier=4, task_track_started=True)


def work(self: Task, run: str) -> str:
    note(run, "ran", self.request.id)
    return "ran"


@app.task
def ready() -> int:
    return os.getpid()


@app.task(bind=True)
def busy(self: Task, run: str) -> str:
    return wait(self, run)


tasks: dict[str, Any] = {}

suffix = ".renamed" if os.environ.get("TESTS_RELEASE") == "renamed" else ""
for mode in MODES:
    made = app.task(bind=True, name=f"ended.{mode}{suffix}")(work)
    tasks[mode] = single_instance(mode=mode, key="ended:{run}")(made)
