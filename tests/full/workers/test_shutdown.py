"""A worker shuts down while its tasks hold locks. `test_cases` has more cases."""

import gc
import os
import signal

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

    def start(**options):
        return running_worker(tmp_path, app="tests.full.workers.pool_app", **options)

    yield start
    gc.collect()  # while the server runs, because the deletion of a result sends it a command


def pid_of(run, times=1):
    return int(run.wait_for("begin", times)[times - 1].split()[2])


def send_signals(worker, *names):
    """Send each signal after the worker has logged the previous one."""
    for seen, name in enumerate(names):
        wait_until(lambda seen=seen: len(worker.logged("shutdown (MainProcess)")) >= seen)
        os.kill(worker.process.pid, getattr(signal, name))


@pytest.mark.parametrize(
    "signals", [["SIGQUIT"], ["SIGTERM", "SIGQUIT"], ["SIGINT", "SIGINT"]], ids="-".join
)
def test_a_cold_shutdown_releases_the_locks_and_late_tasks_run_elsewhere(
    start, run, other_run, signals
):
    with start() as worker:
        early = worker.send(long, run.id)
        result = worker.send(tasks.late, other_run.id)
        first = pid_of(other_run)
        run.wait_for("begin")
        send_signals(worker, *signals)
        worker.process.wait(ENDS_WITHIN)
    assert freed(f"long:{run.id}")
    assert freed(f"late:{other_run.id}")
    with start(queue=worker.queue):
        assert pid_of(other_run, 2) != first
        other_run.go()
        assert outcome(result) == "ran"
    assert result.id != early.id
    assert len(run.notes("begin")) == 1  # its message was acknowledged before it ran


def test_a_process_that_is_killed_in_a_cold_shutdown_leaves_no_lock(start, run):
    # The worker ends so soon after the pool process that only its last check can see the death.
    with start(environment={"TESTS_LOOK_EVERY": "60"}) as worker:
        result = worker.send(tasks.clinging, run.id)
        child = pid_of(run)
        send_signals(worker, "SIGQUIT")
        wait_until(lambda: run.notes("clings"), timeout=60)
        os.kill(child, signal.SIGKILL)
        worker.process.wait(ENDS_WITHIN)
        assert freed(f"late:{run.id}")
        assert worker.logged(result.id, "Lock released for dead process")
