"""A worker shuts down while its tasks hold locks. `test_cases` has more cases."""

import os
import signal
from functools import partial

import pytest

from tests.celery_app import long
from tests.celery_worker import freed, outcome, running_worker
from tests.tools import wait_until

from . import pool_app as tasks

pytestmark = [pytest.mark.celery]

ENDS_WITHIN = 20.0


@pytest.fixture
def start(tmp_path):
    """Start a worker, which stops when its block ends."""
    return partial(running_worker, tmp_path, app="tests.full.workers.pool_app")


def pid_of(run, times=1):
    return int(run.wait_for("begin", times)[times - 1].split()[2])


def test_a_cold_shutdown_releases_the_locks_and_late_tasks_run_elsewhere(start, run, other_run):
    with start() as worker:
        worker.send(long, run.id)
        result = worker.send(tasks.late, other_run.id)
        first = pid_of(other_run)
        run.wait_for("begin")
        os.kill(worker.process.pid, signal.SIGTERM)
        wait_until(lambda: worker.logged("shutdown (MainProcess)"))
        os.kill(worker.process.pid, signal.SIGQUIT)
        worker.process.wait(ENDS_WITHIN)
    assert freed(f"long:{run.id}")
    assert freed(f"late:{other_run.id}")
    with start(queue=worker.queue):
        assert pid_of(other_run, 2) != first
        other_run.go()
        assert outcome(result) == "ran"
    assert len(run.notes("begin")) == 1  # its message was acknowledged before it ran


def test_a_process_that_is_killed_in_a_cold_shutdown_leaves_no_lock(start, run):
    # The worker ends so soon after the pool process that only its last check can see the death.
    with start(environment={"TESTS_LOOK_EVERY": "60"}) as worker:
        result = worker.send(tasks.clinging, run.id)
        child = pid_of(run)
        os.kill(worker.process.pid, signal.SIGQUIT)
        wait_until(lambda: run.notes("clings"), timeout=60)
        os.kill(child, signal.SIGKILL)
        worker.process.wait(ENDS_WITHIN)
        assert freed(f"late:{run.id}")
        assert worker.logged(result.id, "Lock released for dead process")
