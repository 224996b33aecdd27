"""The Celery app of these tests: `celery -A tests.celery_app worker`.

Tasks write what happens to a list of the test's own, in the order in which Redis saw it.
"""

import functools
import os

import redis
from celery import Celery, Task
from celery.exceptions import SoftTimeLimitExceeded
from django.dispatch import receiver
from kombu.exceptions import OperationalError

from django_redislock import single_instance
from django_redislock.celery import current_lock
from django_redislock.celery.message import CONFLICTS
from django_redislock.signals import task_replaced, task_skipped

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

app = Celery("tests", set_as_current=False)
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.update(
    include=["tests.full.workers.coming_from_app"],
    worker_prefetch_multiplier=1,
    task_track_started=True,
)

LONGEST = 30
"""Seconds after which a task goes on although nobody let it."""


def notes() -> redis.Redis:
    from testproject.settings import redis_database

    return redis.Redis.from_url(redis_database(3), decode_responses=True, socket_timeout=None)


def note(run: str, *words: object) -> None:
    with notes() as client:
        client.rpush(run, " ".join(map(str, words)))


def wait_for_go(run: str) -> None:
    with notes() as client:
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


def work(task: Task, run: str, seconds: float) -> str:
    """Take some time, and leave a note at both ends."""
    note(run, "begin", task.request.id)
    with notes() as client:
        client.blpop([f"{run}:never"], seconds)
    note(run, "end", task.request.id)
    return "ran"


@app.task
def ready():
    return os.getpid()


@app.task(bind=True)
@single_instance(key="work:{run}", timeout=3)
def skipping(self, run, seconds=0.2):
    return work(self, run, seconds)


@app.task(bind=True)
@single_instance(key="work:{run}", timeout=3, on_conflict="raise")
def raising(self, run, seconds=0.2):
    return work(self, run, seconds)


@app.task(bind=True, max_retries=0)
@single_instance(key="work:{run}", timeout=3, on_conflict="retry", countdown=0.2)
def retrying(self, run, seconds=0.1):
    return work(self, run, seconds)


@app.task(bind=True, acks_late=True)
@single_instance(key="work:{run}", timeout=3, on_conflict="wait")
def waiting(self, run, seconds=0.1):
    return work(self, run, seconds)


@app.task(bind=True)
@single_instance(unique_on=["run"], timeout=5)
def held(self, run):
    """Hold the lock until the test lets go."""
    note(run, "begin", self.request.id)
    wait_for_go(run)
    return "ran"


@app.task(bind=True)
@single_instance(key="place:{run}", timeout=5)
def holder(self, run):
    note(run, "begin", self.request.id)
    wait_for_go(run)
    return "held"


@app.task(bind=True)
@single_instance(key="few:{run}", limit=2, timeout=5)
def few(self, run):
    note(run, "begin", self.request.id)
    wait_for_go(run)
    return "ran"


@app.task
@single_instance(key="rare:{run}", at_least_for=2)
def rare(run):
    return "ran"


@app.task(bind=True, max_retries=0)
@single_instance(key="place:{run}", on_conflict="retry", countdown=0.1)
def patient(self, run):
    request = self.request
    return {"retries": request.retries, "headers": request.headers, "id": request.id}


@app.task
@single_instance(key="place:{run}", on_conflict="retry", countdown=0.3, max_retries=2)
def impatient(run):
    return "ran"


@app.task
@single_instance(key="place:{run}", on_conflict="raise")
def refused(run):
    return "ran"


@app.task
@single_instance(key="place:{run}", on_conflict="wait", blocking_timeout=0.1)
def short_of_time(run):
    return "ran"


@app.task
@single_instance(key="place:{run}")
def skipped(run):
    return "ran"


@app.task(soft_time_limit=1)
@single_instance(key="place:{run}", on_conflict="wait")
def impatient_to_wait(run):
    return "ran"


class BrokerWithAGap(Task):
    """A task that can't be sent again the first time it is tried."""

    def apply_async(self, args=None, kwargs=None, **options):
        if CONFLICTS in (options.get("headers") or {}) and not self.failed_before(args[0]):
            note(args[0], "unsent")
            raise OperationalError("no broker")
        return super().apply_async(args, kwargs, **options)

    def failed_before(self, run):
        with notes() as client:
            return client.llen(run) > 1


@app.task(base=BrokerWithAGap)
@single_instance(key="place:{run}", on_conflict="retry", countdown=0.1)
def unsendable(run):
    return "ran"


@app.task(base=BrokerWithAGap, acks_late=True)
@single_instance(key="place:{run}", on_conflict="retry", countdown=0.1)
def unsendable_late(run):
    return "ran"


@app.task
def collect(results):
    return results


@app.task(bind=True, default_retry_delay=0.2, max_retries=3)
@single_instance(unique_on="*", timeout=5)
def retries_itself(self, run):
    note(run, "begin", self.request.id)
    if self.request.retries < 2:
        raise self.retry()
    return self.request.retries


@app.task(bind=True)
@single_instance(unique_on="*", timeout=5)
def sends_itself_again(self, run):
    """Retry, and hold the lock until the second execution has met it."""
    note(run, "begin", self.request.retries)
    if self.request.retries:
        return "ran again"
    retry = self.retry(countdown=0, throw=False)
    wait_for_go(run)
    raise retry


@app.task(bind=True)
@single_instance(unique_on="*", timeout=5)
def sends_itself_again_and_returns(self, run):
    """The same, but it ends well, and its result is there before the second has run."""
    note(run, "begin", self.request.retries)
    if not self.request.retries:
        self.retry(countdown=0, throw=False)
        wait_for_go(run)
    return self.request.retries


@app.task(autoretry_for=(LookupError,), default_retry_delay=0.2, max_retries=3)
@single_instance(unique_on=["run"], timeout=5)
def retried_for_errors(run):
    note(run, "lock", current_lock().name)
    with notes() as client:
        if client.llen(run) < 3:
            raise LookupError(run)
    return "ran"


@app.task(soft_time_limit=1)
@single_instance(unique_on=["run"], timeout=30)
def overtaxed(run):
    try:
        wait_for_go(run)
    except SoftTimeLimitExceeded:
        note(run, "limit")
        raise


@app.task
@single_instance(key="place:{run}", timeout=3)
def stopped(run):
    """Say which process this is, and whether its lock is lost when it was stopped meanwhile."""
    lock = current_lock()
    note(run, "pid", os.getpid(), lock.lost)
    wait_for_go(run)
    with notes() as client:
        for _ in range(100):
            if lock.lost:
                break
            client.blpop([f"{run}:never"], 0.1)
    return lock.lost


@app.task(bind=True)
@single_instance(key="long:{run}", timeout=60)
def long(self, run):
    note(run, "begin", self.request.id, os.getpid())
    wait_for_go(run)
    return "ran"


def looked_up(function):
    @functools.wraps(function)
    def wrapper(self, run):
        return function(self, {"run": run})

    return wrapper


@app.task(bind=True)
@looked_up
@single_instance(key="long:{account[run]}", timeout=60)
def long_by_other_arguments(self, account):
    return part_of_it(self, account["run"])


@single_instance(key="long:{run}:part", timeout=60)
def part_of_it(task, run):
    note(run, "begin", task.request.id, os.getpid())
    wait_for_go(run)
    return "ran"


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)
@single_instance(key="long:{run}", timeout=60)
def stubborn(self, run):
    note(run, "begin", self.request.id, os.getpid())
    wait_for_go(run)
    return "ran"


@app.task(bind=True)
@single_instance(key="long:{run}", timeout=60, on_conflict="wait")
def long_waiting(self, run):
    note(run, "begin", self.request.id, os.getpid())
    wait_for_go(run)
    return "ran"


@app.task(bind=True)
@single_instance(key="long:{run}", timeout=60, at_least_for=3)
def rare_and_long(self, run):
    note(run, "begin", self.request.id, os.getpid())
    wait_for_go(run)
    return "ran"


@app.task(bind=True)
@single_instance(key="long:{run}", timeout=1, on_lost="abort")
def aborted(self, run):
    note(run, "begin", self.request.id, os.getpid())
    try:
        wait_for_go(run)
    except SoftTimeLimitExceeded:
        note(run, "limited")
        raise
    return "ran"


class Placed:
    """Tasks that take their place when they are sent, by their mode."""

    def __init__(self, kind: str) -> None:
        self._kind, self._tasks = kind, {}

    def __getitem__(self, mode):
        return self._tasks[mode]

    def add(self, mode, **options):
        def placed(self, run):
            note(run, "begin", self.request.id, os.getpid())
            wait_for_go(run)
            return "ran"

        task = app.task(bind=True, name=f"tests.{self._kind}.{mode}")(placed)
        self._tasks[mode] = single_instance(mode=mode, key="placed:{run}", **options)(task)


@single_instance(mode="until_executed", key="long:{run}", timeout=60)
@app.task(bind=True, retry_on_worker_lost=True, default_retry_delay=0.1)
def outliving(self, run):
    note(run, "begin", self.request.id, os.getpid())
    wait_for_go(run)
    return "ran"


@single_instance(mode="until_executed", key="page:{run}:{page}")
@app.task(bind=True)
def paging(self, run, page):
    note(run, "begin", page)
    if page < 3:
        raise self.retry(args=(run, page + 1), kwargs={}, countdown=0.1)
    return page


@single_instance(mode="until_executed", key="placed:{run}")
@app.task(bind=True)
def giving_over(self, run):
    queue = self.request.delivery_info["routing_key"]
    raise self.replace(placed["until_executed"].s(run).set(queue=queue))


placed, replacing = Placed("placed"), Placed("replacing")
for mode in ("until_executing", "until_executed", "until_and_while_executing"):
    placed.add(mode)
    replacing.add(mode, on_conflict="replace")
