"""The Celery app of tasks in order: `celery -A tests.full.workers.ordered_app worker`."""

import fcntl
import os
import random
import tempfile
import time
from pathlib import Path

from celery import Celery, Task

from django_redislock import single_instance
from tests.celery_app import note, notes, wait_for_go

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

app = Celery("tests.ordered", set_as_current=False)
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.update(worker_prefetch_multiplier=1, task_track_started=True)

if visibility_timeout := os.environ.get("TESTS_VISIBILITY_TIMEOUT"):
    app.conf.broker_transport_options = {
        "visibility_timeout": float(visibility_timeout),
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,  # or kombu looks for them every 100 s
    }


def ordered(name, body, task_options=None, **options):
    """Return a task whose instances for one customer run in order."""
    made = app.task(bind=True, name=f"ordered.{name}", **(task_options or {}))(body)
    return single_instance(
        key="ordered:{run}:{customer}",
        mode="until_executed",
        on_conflict="queue",
        timeout=5,
        **options,
    )(made)


def number_it(self: Task, run: str, customer: str, number: int) -> int:
    """Note the begin and the end of the task, and whether another one overlaps."""
    inside = f"{run}:inside:{customer}"
    with notes() as client:
        running = client.incr(inside)
        note(run, "begin", customer, number, running)
        client.decr(inside)
        note(run, "end", customer, number)
    return number


def wait(self: Task, run: str, customer: str, number: int) -> int:
    """Note the begin, and wait until the test lets the task go on."""
    note(run, "begin", customer, number, os.getpid())
    wait_for_go(f"{run}:{number}")
    note(run, "end", customer, number)
    return number


def retry_once(self: Task, run: str, customer: str, number: int) -> int:
    note(run, "begin", customer, number, self.request.retries)
    if not self.request.retries:
        raise self.retry(countdown=0.5)
    return number


def fail(self: Task, run: str, customer: str, number: int) -> int:
    note(run, "begin", customer, number)
    raise LookupError(number)


def shaken(self: Task, run: str, customer: str, number: int) -> int:
    """Note the begin and the end, and an overlap. The process can be killed at any moment."""
    # The kernel releases the file lock as soon as the process is dead.
    with (Path(tempfile.gettempdir()) / f"{run}-{customer}").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(run, "overlap", customer, number, self.request.id)
        note(run, "begin", customer, number)
        time.sleep(random.uniform(0, 0.02))
        note(run, "end", customer, number)
    return number


numbered = ordered("numbered", number_it)
waiting = ordered("waiting", wait)
killed = ordered("killed", shaken, {"acks_late": True, "reject_on_worker_lost": True})
retried = ordered("retried", retry_once)
failing = ordered("failing", fail)


@app.task
def ready() -> int:
    return os.getpid()


@app.task
def collect(results: list) -> list:
    return results
