"""Tasks of `django.tasks` with real workers of django-tasks-db and django-tasks-rq."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from django_redislock import locks
from django_redislock.tasks import SKIPPED
from tests.celery_worker import FREE_WITHIN, freed
from tests.tools import ROOT, Child, wait_until

# The tests share processes, so one test process runs them all.
pytestmark = [pytest.mark.xdist_group("django_tasks"), pytest.mark.timeout(600)]

DATABASE = ["db_worker", "--interval", "0.02", "--no-startup-delay"]
RQ = ["rqworker", "default", "--job-class", "django_tasks_rq.Job"]
WORKERS = {
    "default": DATABASE,
    "rq": RQ,
    "single": [*DATABASE, "--backend", "single"],
    "single_rq": RQ,
}
WITH_QUEUE_LOCKS = pytest.mark.parametrize("backend", ["single", "single_rq"])
COUNT = 8

CLIENT = """
import json
import time
import django.tasks.signals
import django_tasks.signals
from tests.full.tasks import sample

def enqueue(name, *args, backend, count=1):
    task = getattr(sample, name).using(backend=backend)
    return [task.enqueue(*args).id for _ in range(count)]

def enqueue_all_the_time(name, run, backend, tasks):
    "Until that many tasks were enqueued, so not longer than the workers need."
    ids = {}
    while len(ids) < tasks:
        ids |= dict.fromkeys(enqueue(name, run, backend=backend))
    return list(ids)

def until_it_runs(task_result, **_):
    "The sender is slower than the worker."
    while task_result.task.get_backend().get_result(task_result.id).status == "READY":
        time.sleep(0.01)
    time.sleep(0.2)

def enqueue_slowly(*args, **options):
    for signals in (django.tasks.signals, django_tasks.signals):
        signals.task_enqueued.connect(until_it_runs)
    try:
        return enqueue(*args, **options)
    finally:
        for signals in (django.tasks.signals, django_tasks.signals):
            signals.task_enqueued.disconnect(until_it_runs)

def outcome(name, backend, result_id):
    result = getattr(sample, name).using(backend=backend).get_result(result_id)
    if not result.is_finished:
        return None
    failed = result.status == "FAILED"
    return result.errors[-1].exception_class_path if failed else result.return_value

def delete(backend, result_id):
    "Cancel a task that has not started."
    if backend == "single":
        from django_tasks_db.models import DBTaskResult
        DBTaskResult.objects.get(id=result_id).delete()
    else:
        import django_rq
        django_rq.get_queue("default").fetch_job(result_id).delete()


while request := hear():
    say(json.dumps(eval(request)))
"""


class Project:
    """A Django project with a client that enqueues tasks, and workers."""

    def __init__(self, environment: dict[str, str], client: Child) -> None:
        self.environment, self.client = environment, client

    def ask(self, expression: str):
        self.client.tell(expression)
        return json.loads(self.client.expect("", timeout=120))

    def enqueue(self, name: str, *args: object, **options: object) -> list[str]:
        given = [repr(name), *map(repr, args), *(f"{key}={options[key]!r}" for key in options)]
        return self.ask(f"enqueue({', '.join(given)})")

    def outcomes(self, name: str, backend: str, ids: list[str]) -> list:
        def ended() -> list:
            found = self.ask(f"[outcome({name!r}, {backend!r}, each) for each in {ids!r}]")
            return [] if None in found else found

        return wait_until(ended, timeout=120, interval=0.2)

    @contextlib.contextmanager
    def workers(
        self, backend: str, count: int, **environment: str
    ) -> Iterator[list[subprocess.Popen]]:
        command = [sys.executable, "-m", "django", *WORKERS[backend]]
        env = self.environment | environment
        processes = [subprocess.Popen(command, cwd=ROOT, env=env) for _ in range(count)]
        try:
            yield processes
        finally:
            for each in processes:
                kill(each)


def kill(worker: subprocess.Popen) -> None:
    """Kill a worker, and the process in which a worker of RQ runs a task."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in [*psutil.Process(worker.pid).children(recursive=True), worker]:
            each.kill()
    worker.wait()


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Iterator[Project]:
    settings = {
        "DJANGO_SETTINGS_MODULE": "tests.full.tasks.settings",
        "TASKS_DATABASE": str(tmp_path_factory.mktemp("tasks") / "tasks.sqlite3"),
    }
    environment = os.environ | settings
    migrate = [sys.executable, "-m", "django", "migrate", "--verbosity", "0"]
    subprocess.run(migrate, cwd=ROOT, env=environment, check=True)
    with Child(CLIENT, **settings) as client:
        yield Project(environment, client)


def never_two_at_once(notes: list[str]) -> int:
    """Check that each task ended before the next one began, and return how many ran."""
    runs = [note for note in notes if note in ("begin", "end")]
    assert runs == ["begin", "end"] * (len(runs) // 2)
    return len(runs) // 2


@pytest.mark.parametrize(
    ("name", "backend"),
    [("skip", "default"), ("async_wait", "default"), ("wait", "rq"), ("rq_wait", "rq")],
)
def test_three_workers_never_run_two_at_once(project, run, backend, name) -> None:
    ids = project.enqueue(name, run.id, backend=backend, count=COUNT)
    with project.workers(backend, 3):
        outcomes = project.outcomes(name, backend, ids)
    ran = never_two_at_once(run.notes())
    assert outcomes.count("ran") == ran
    if name == "skip":
        skipped = [each for each in outcomes if each != "ran"]
        assert len(skipped) == len(run.notes("skipped")) > 0
        assert all(SKIPPED in each for each in skipped)
    else:
        assert ran == COUNT


def test_the_holder_is_the_task_that_is_aborted_if_it_loses_its_lock(project, run) -> None:
    with project.workers("rq", 2):
        (task_id,) = project.enqueue("aborted", run.id, backend="rq")
        run.wait_for("begin")
        holder = locks.get(f"tasks:{run.id}").holder
        assert holder.task_name == "tests.full.tasks.sample.aborted"
        assert holder.task_id == task_id
        others = project.enqueue("aborted", run.id, backend="rq")
        (skipped,) = project.outcomes("aborted", "rq", others)
        assert skipped[SKIPPED] == f"Lock 'tasks:{run.id}' is held by task {task_id!r}"
        locks.force_release(f"tasks:{run.id}")
        outcomes = project.outcomes("aborted", "rq", [task_id])
    assert outcomes == ["django_redislock.exceptions.LockLost"]


@WITH_QUEUE_LOCKS
def test_one_task_is_queued_or_runs(project, run, backend) -> None:
    (task_id,) = set(project.enqueue("until_executed", run.id, backend=backend, count=COUNT))
    assert len(run.notes("skipped")) == COUNT - 1
    assert locks.get(f"tasks:{run.id}").holder.task_id == task_id
    with project.workers(backend, 3):
        assert project.outcomes("until_executed", backend, [task_id]) == ["ran"]
        arguments = ("until_executed", run.id, backend, 4)
        ids = project.ask(f"enqueue_all_the_time{arguments!r}")
        assert project.outcomes("until_executed", backend, ids) == ["ran"] * 4
    assert never_two_at_once(run.notes()) == 5
    assert freed(f"tasks:{run.id}")


@WITH_QUEUE_LOCKS
def test_a_task_that_starts_before_its_sender_knows_its_id(project, run, backend) -> None:
    with project.workers(backend, 1):
        ids = project.ask(f"enqueue_slowly('until_executed', {run.id!r}, backend={backend!r})")
        assert project.outcomes("until_executed", backend, ids) == ["ran"]
    assert freed(f"tasks:{run.id}")


def enqueue_next(project, run, backend, before) -> str:
    """Enqueue a task, again and again, until it is another one than before."""

    def enqueued():
        (found,) = project.enqueue("newer", run.id, backend=backend)
        return found if found != before else None

    return wait_until(enqueued, timeout=FREE_WITHIN)


@WITH_QUEUE_LOCKS
def test_a_worker_that_cannot_import_the_task(project, run, backend) -> None:
    (first,) = project.enqueue("newer", run.id, backend=backend)
    with project.workers(backend, 1, TESTS_RELEASE="older"):
        assert project.outcomes("newer", backend, [first]) != ["ran"]
    second = enqueue_next(project, run, backend, first)
    with project.workers(backend, 1):
        assert project.outcomes("newer", backend, [second]) == ["ran"]
    assert freed(f"tasks:{run.id}")


@WITH_QUEUE_LOCKS
def test_a_task_that_was_deleted(project, run, backend) -> None:
    (first,) = project.enqueue("newer", run.id, backend=backend)
    project.ask(f"delete({backend!r}, {first!r})")
    second = enqueue_next(project, run, backend, first)
    with project.workers(backend, 1):
        assert project.outcomes("newer", backend, [second]) == ["ran"]
    assert freed(f"tasks:{run.id}")
