"""The tasks of `test_coming_from`, as those who come from another package would write them."""

from celery.exceptions import Ignore, Reject

from django_redislock import single_instance
from tests.celery_app import app, note, wait_for_go


def begun(task, run):
    note(run, "begin", task.request.id)
    wait_for_go(run)
    return "ran"


@single_instance(mode="until_executed", key="place:{run}", timeout=60)
@app.task(bind=True)
def placed(self, run):
    return begun(self, run)


@single_instance(mode="until_executed", key="place:{run}", timeout=60, on_conflict="raise")
@app.task(bind=True)
def refusing(self, run):
    return begun(self, run)


@single_instance(mode="until_executed", key="place:{run}", timeout=60, on_conflict="replace")
@app.task(bind=True)
def replacing(self, run):
    return begun(self, run)


@single_instance(mode="until_executed", unique_on=["run"])
@app.task(bind=True)
def by_run(self, run, full=False):
    return begun(self, run)


@single_instance(mode="until_executed", unique_on="*")
@app.task(bind=True)
def by_all(self, run, full=False):
    return begun(self, run)


@single_instance(mode="until_executed")
@app.task(bind=True)
def by_task(self, run):
    return begun(self, run)


@single_instance(
    mode="until_executed", key=lambda run, full=False: f"place:{run}:{bool(full)}", timeout=60
)
@app.task(bind=True)
def by_callable(self, run, full=False):
    return begun(self, run)


@single_instance(mode="until_executed", key="tests:nightly", timeout=60)
@app.task(bind=True)
def nightly(self, run):
    return begun(self, run)


@single_instance(mode="until_executed", key="place:{run}", timeout=20, queue_timeout=600)
@app.task(bind=True)
def queued(self, run):
    return begun(self, run)


@single_instance(mode="until_executed", key="place:{run}", timeout=1)
@app.task(bind=True)
def short_lease(self, run):
    return begun(self, run)


@single_instance(mode="until_executed", key="place:{run}", timeout=60, at_least_for=3)
@app.task(bind=True)
def rare(self, run):
    note(run, "begin", self.request.id)
    return "ran"


@single_instance(mode="until_executing", key="place:{run}", timeout=60)
@app.task(bind=True)
def free_when_it_begins(self, run):
    return begun(self, run)


@single_instance(mode="until_and_while_executing", key="place:{run}", timeout=60)
@app.task(bind=True)
def one_and_one(self, run):
    return begun(self, run)


@single_instance(mode="until_executed", key="place:{run}", timeout=60)
@app.task(bind=True, max_retries=2)
def retries_itself(self, run):
    note(run, "begin", self.request.id)
    if self.request.retries < self.max_retries:
        raise self.retry(countdown=1)
    return "ran"


@single_instance(mode="until_executed", key="place:{run}", timeout=60)
@app.task(bind=True)
def ignored(self, run):
    note(run, "begin", self.request.id)
    raise Ignore


@single_instance(mode="until_executed", key="place:{run}", timeout=60)
@app.task(bind=True, acks_late=True)
def rejected(self, run):
    note(run, "begin", self.request.id)
    raise Reject("not wanted", requeue=False)


@app.task(bind=True)
@single_instance(key="place:{run}", timeout=60)
def running(self, run):
    return begun(self, run)


@app.task(bind=True)
@single_instance(key="place:{run}", timeout=60, on_conflict="wait", blocking_timeout=20)
def waiting(self, run):
    return begun(self, run)


@app.task(bind=True, max_retries=0)
@single_instance(
    key="place:{run}", limit=2, at_least_for=2, timeout=60, on_conflict="retry", countdown=0.2
)
def two_in_two_seconds(self, run):
    note(run, "begin", self.request.id)
    return self.request.retries
