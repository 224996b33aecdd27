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
    def workers(self, backend: str, count: int) -> Iterator[None]:
        command = [sys.executable, "-m", "django", *WORKERS[backend]]
        env = self.environment
        processes = [subprocess.Popen(command, cwd=ROOT, env=env) for _ in range(count)]
        try:
            yield
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


@pytest.mark.parametrize(("name", "backend"), [("async_wait", "default"), ("rq_wait", "rq")])
def test_three_workers_never_run_two_at_once(project, run, backend, name) -> None:
    ids = project.enqueue(name, run.id, backend=backend, count=COUNT)
    with project.workers(backend, 3):
        assert project.outcomes(name, backend, ids) == ["ran"] * COUNT
    assert never_two_at_once(run.notes()) == COUNT


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
def test_after_a_task_that_was_deleted_the_next_one_is_enqueued(project, run, backend) -> None:
    (first,) = project.enqueue("until_executed", run.id, backend=backend)
    project.ask(f"delete({backend!r}, {first!r})")

    def enqueued() -> str | None:
        (found,) = project.enqueue("until_executed", run.id, backend=backend)
        return found if found != first else None

    second = wait_until(enqueued, timeout=FREE_WITHIN)
    with project.workers(backend, 1):
        assert project.outcomes("until_executed", backend, [second]) == ["ran"]
    assert freed(f"tasks:{run.id}")
