"""The most important cases with a real prefork worker. `tests/full/workers` has the others."""

import pytest

from django_redislock import locks
from tests import celery_app as tasks
from tests.celery_worker import freed, outcome
from tests.tools import wait_until

pytestmark = [pytest.mark.celery]


@pytest.fixture
def name(run):
    return f"long:{run.id}"


def pid_of(run):
    [begin] = run.wait_for("begin")
    return int(begin.split()[2])


def test_a_task_that_meets_a_running_one_is_skipped(worker, run, name):
    first = worker.send(tasks.long, run.id)
    pid, info = pid_of(run), locks.get(name)
    holder = info.holder
    assert (holder.task_id, holder.task_name, holder.pid) == (first.id, tasks.long.name, pid)
    assert info.timeout == 60
    second = worker.send(tasks.long, run.id)
    assert outcome(second) is None
    assert second.state == "SUCCESS"
    assert run.notes("skipped") == [f"skipped {second.id} by {first.id}"]
    assert wait_until(lambda: worker.logged("skipped", "WARNING", name, second.id, first.id))
    run.go()
    assert outcome(first) == "ran"
    assert freed(name)


def test_the_worker_releases_the_lock_of_a_killed_process(worker, run, name):
    result = worker.send(tasks.long, run.id)
    worker.kill_child(pid_of(run), result.id)
    assert freed(name)
    assert type(outcome(result)).__name__ == "WorkerLostError"
    wait_until(lambda: worker.logged(result.id, "Lock released for dead process"))
