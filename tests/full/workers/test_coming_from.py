"""The replacements for tasks of other packages in docs/how-to/coming-from.md.

`tests/full/docs` runs the samples of the page. Here their tasks meet duplicates.
"""

from datetime import timedelta

import pytest

from django_redislock import AlreadyRunning, locks
from tests.celery_worker import outcome, running_worker
from tests.tools import wait_until

from . import coming_from_app as replacements

pytestmark = [pytest.mark.celery]


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("worker")
    with running_worker(folder, app="tests.full.workers.coming_from_app") as worker:
        yield worker


PACKAGES = {
    "celery_once": 'tests.from.celery_once:run="{}"',
    "celery_singleton": 'tests.from.celery_singleton:run="{}"',
    "celery_heimdall": "sync-{}",
}
"""The names of the locks."""


@pytest.mark.parametrize("package", PACKAGES)
def test_one_task_is_queued_or_runs(worker, run, package):
    task, name = getattr(replacements, package), PACKAGES[package].format(run.id)

    def send_duplicate():
        if package == "celery_singleton":
            with pytest.raises(AlreadyRunning) as caught:
                worker.send(task, run.id, True)
            return caught.value.task_id
        return worker.send(task, run.id, True).id

    first = worker.send(task, run.id, countdown=0.7)
    assert 580 < locks.get(name).ttl <= 601
    assert send_duplicate() == first.id
    run.wait_for("begin")
    assert locks.get(name).ttl <= 30
    assert send_duplicate() == first.id
    run.go()
    assert outcome(first) == "ran"
    wait_until(lambda: locks.get(name) is None)
    assert len(run.notes("begin")) == 1


def test_a_rate_limit_runs_two_tasks_in_two_seconds(worker, run):
    name = f"rate:{run.id}"
    results = [worker.send(replacements.rate_limited, run.id) for _ in range(3)]
    run.wait_for("begin", 2)
    first = min(each.acquired_at for each in locks.get(name).holders)
    run.wait_for("begin", 3)
    last = max(each.acquired_at for each in locks.get(name).holders)
    assert last - first >= timedelta(seconds=2)
    assert [outcome(each) for each in results] == [0, 0, 0]
    wait_until(lambda: locks.get(name) is None)
    # What two cooldowns at a time leave goes with the next.
    with locks.semaphore(name, 2):
        pass
