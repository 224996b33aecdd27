"""More tasks of the tests' app, for other pools.

`celery -A tests.full.workers.pool_app worker`.
"""

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
