"""More tasks of the tests' app, for other pools, shutdowns and brokers.

`celery -A tests.full.workers.pool_app worker`.
"""

import fcntl
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from django_redislock import single_instance
from django_redislock.celery import current_lock
from tests.celery_app import app, note, notes, wait, waiting_task, work


@app.task(bind=True)
@single_instance(key="pool:{run}", timeout=1, on_conflict="wait")
def waiting(self, run):
    return work(self, run, 0.02)


@app.task(bind=True)
@single_instance(key="pool:{run}", timeout=1)
def leased(self, run):
    """Hold the lock until the test lets the task continue, for longer than the lease."""
    wait(self, run)
    return current_lock().lost


@app.task(bind=True)
@single_instance(key="pool:{run}", timeout=60, limit=2)
def shared(self, run):
    """Hold a semaphore with a limit of 2 until the test lets the task continue."""
    wait(self, run)
    note(run, "end", current_lock().lost)


@app.task
@single_instance(key="pool:{run}", timeout=1, on_lost="abort")
def watchful(run):
    """Check the lock regularly, which is necessary if the pool cannot interrupt the task."""
    lock = current_lock()
    note(run, "begin", lock.lost)
    with notes() as client:
        for _ in range(200):
            if lock.lost:
                return "saw it"
            client.blpop([f"{run}:never"], 0.1)
    return "saw nothing"


interrupted = waiting_task("interrupted", key="pool:{run}", timeout=1, on_lost="abort")


def killed_task(name: str, mode: str = "while_executing", **options: Any) -> Any:
    """Return a task whose message survives its pool process. A file lock checks its exclusion."""

    def body(self, run, account):
        # The kernel releases the file lock as soon as the process is dead.
        with (Path(tempfile.gettempdir()) / f"{run}-{name}-{account}").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                note(run, "overlap", self.request.id)
            note(run, "begin", self.request.id, os.getpid())
            time.sleep(random.uniform(0, 0.1))
        return "ran"

    late = {"acks_late": True, "reject_on_worker_lost": True}
    # With one key for all tasks, all processes could wait for the queue lock of a task that has no
    # free process.
    key = f"{{run}}:{name}:{{account}}"
    make = app.task(bind=True, name=f"tests.killed.{name}", **late)
    decorate = single_instance(key=key, mode=mode, timeout=60, **options)
    return make(decorate(body)) if mode == "while_executing" else decorate(make(body))


killed = [
    killed_task("waiting", on_conflict="wait"),
    killed_task("retried", on_conflict="retry", countdown=0.05),
    killed_task("queued", mode="until_executed"),
]
