"""The Celery app of these tests: `celery -A tests.celery_app worker`.

Each test has a list in Redis. The tasks append notes to it.
"""

import os
from typing import Any

import redis
from celery import Celery, Task
from django.dispatch import receiver

from django_redislock import single_instance
from django_redislock.signals import task_replaced, task_skipped

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

app = Celery("tests", set_as_current=False)
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.update(worker_prefetch_multiplier=1, task_track_started=True)

LONGEST = 30
"""Seconds after which a task continues without the test's permission."""


def notes() -> redis.Redis:
    from testproject.settings import redis_database

    return redis.Redis.from_url(redis_database(3), decode_responses=True, socket_timeout=None)


def note(run: str, *words: object) -> None:
    with notes() as client:
        client.rpush(run, " ".join(map(str, words)))


def wait_for_go(run: str, *words: object) -> None:
    """Wait until the test lets the task go on, after a note of these words if there are any.

    Both use one client. A `SIGTERM` that arrives while a client is deleted has no effect, because
    Python ignores exceptions in `__del__()`.
    """
    with notes() as client:
        if words:
            client.rpush(run, " ".join(map(str, words)))
        client.blpop([f"{run}:go"], LONGEST)


@receiver(task_skipped)
def note_skipped(sender, task_id, holder_task_id, args, kwargs, **_):
    run = str(args[0] if args else kwargs.get("run"))
    if run.startswith("run-"):
        note(run, "skipped", task_id, "by", holder_task_id)


@receiver(task_replaced)
def note_replaced(sender, name, task_id, by_task_id, **_):
    run = name.removesuffix(":queued").partition(":")[2]
    if run.startswith("run-"):
        note(run, "replaced", task_id, "by", by_task_id)


def wait(task: Task, run: str) -> str:
    """Note the start and wait until the test lets the task go on."""
    wait_for_go(run, "begin", task.request.id, os.getpid())
    return "ran"


def work(task: Task, run: str, seconds: float) -> str:
    """Take some time and note the start and the end."""
    note(run, "begin", task.request.id)
    with notes() as client:
        client.blpop([f"{run}:never"], seconds)
    note(run, "end", task.request.id)
    return "ran"


def waiting_task(
    name: str,
    task_options: dict[str, Any] | None = None,
    mode: str = "while_executing",
    **options: Any,
) -> Any:
    """Return a task that waits, with these options of `single_instance`."""

    def body(self, run):
        return wait(self, run)

    make = app.task(bind=True, name=f"tests.{name}", **(task_options or {}))
    decorate = single_instance(mode=mode, **options)
    return make(decorate(body)) if mode == "while_executing" else decorate(make(body))


@app.task
def ready():
    return os.getpid()


@app.task
def collect(results):
    return results


@app.task(bind=True, max_retries=0)
@single_instance(key="long:{run}", on_conflict="retry", countdown=0.1)
def patient(self, run):
    return self.request.retries


@app.task(soft_time_limit=1)
@single_instance(key="long:{run}", on_conflict="wait")
def impatient(run):
    return "ran"


LONG = {"key": "long:{run}", "timeout": 60}

long = waiting_task("long", **LONG)
stubborn = waiting_task("stubborn", {"acks_late": True, "reject_on_worker_lost": True}, **LONG)
outliving = waiting_task(
    "outliving",
    {"retry_on_worker_lost": True, "default_retry_delay": 0.1},
    mode="until_executed",
    **LONG,
)

MODES = ("until_executing", "until_executed", "until_and_while_executing")

queued = {mode: waiting_task(f"queued.{mode}", mode=mode, key="queued:{run}") for mode in MODES}
replacing = waiting_task(
    "replacing", mode="until_executed", key="queued:{run}", on_conflict="replace"
)
