"""A worker shuts down while its tasks hold locks. `test_cases` has more of such ways."""

import gc
import os
import signal
from contextlib import contextmanager

import pytest

from django_redislock import locks
from tests.celery_app import long
from tests.celery_worker import outcome, running_worker
from tests.tools import wait_until

from . import pool_app as tasks
from .test_pools import ids_that_ran_one_after_the_other

pytestmark = [pytest.mark.celery]

FREE_WITHIN = 2.0
"""Seconds after the end of the worker."""

ENDS_WITHIN = 20.0


@pytest.fixture
def start(tmp_path):
    """Start a worker as `start(queue=...)`; it is stopped at the end of its `with`."""

    def start(**options):
        return running_worker(tmp_path, app="tests.full.workers.pool_app", **options)

    yield start
    gc.collect()  # a result that goes tells the server so, which must still be there


def pid_of(run, times=1):
    return int(run.wait_for("begin", times)[times - 1].split()[2])


def freed(name, within=FREE_WITHIN):
    wait_until(lambda: locks.get(name) is None, timeout=within)
    return True


def send_signals(worker, *names):
    """One after the other, each when the one before was seen."""
    for seen, name in enumerate(names):
        wait_until(lambda seen=seen: len(worker.logged("shutdown (MainProcess)")) >= seen)
        os.kill(worker.process.pid, getattr(signal, name))


@pytest.fixture
def given_back(start, other_run):
    """Have one worker fetch what is sent and give it back unbegun, and another run it."""

    @contextmanager
    def given_back(send):
        with start(concurrency=1, arguments=["--prefetch-multiplier", "4"]) as first:
            first.send(long, other_run.id)
            other_run.wait_for("begin")
            results = send(first)
            wait_until(lambda: all(first.logged(each.id, "received") for each in results))
            send_signals(first, "SIGTERM")
            wait_until(lambda: first.logged("Warm shutdown"))
            other_run.go()
            assert first.process.wait(ENDS_WITHIN) == 0
        with start(queue=first.queue, concurrency=1):
            yield results

    return given_back


def test_one_of_two_requeued_duplicates_runs(given_back, run):
    with given_back(lambda worker: [worker.send(tasks.once, run.id) for _ in range(2)]) as sent:
        assert sorted(map(outcome, sent), key=str) == [None, "ran"]
    assert len(run.notes("begin")) == len(run.notes("skipped")) == 1
    assert locks.force_release(f"pool:{run.id}") == 1


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # redis-py 8
def test_a_requeued_message_with_an_id_that_has_succeeded_before_runs(given_back, run):
    tasks.app.backend.store_result(run.id, "ran", "SUCCESS")
    with given_back(lambda worker: [worker.send(tasks.alone, run.id, task_id=run.id)]):
        run.wait_for("end")


@pytest.mark.parametrize(
    "signals",
    [["SIGQUIT"], ["SIGTERM", "SIGQUIT"], ["SIGINT", "SIGINT"]],
    ids="-".join,
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
    # The worker ends so soon after the child that only its last look can see it.
    with start(environment={"TESTS_LOOK_EVERY": "60"}) as worker:
        result = worker.send(tasks.clinging, run.id)
        child = pid_of(run)
        send_signals(worker, "SIGQUIT")
        wait_until(lambda: run.notes("clings"), timeout=60)
        os.kill(child, signal.SIGKILL)
        worker.process.wait(ENDS_WITHIN)
        assert freed(f"late:{run.id}")
        assert worker.logged(result.id, "Lock released for dead process")


def test_sigterm_to_the_whole_group_frees_the_lock(start, run):
    with start() as worker:
        worker.send(long, run.id)
        run.wait_for("begin")
        os.killpg(worker.process.pid, signal.SIGTERM)
        worker.process.wait(ENDS_WITHIN)
    assert freed(f"long:{run.id}")


def test_processes_that_run_one_task_each_leave_no_lock(start, run):
    with start(arguments=["--max-tasks-per-child", "1"]) as worker:
        results = [worker.send(tasks.waiting, run.id) for _ in range(12)]
        assert {outcome(result, timeout=60) for result in results} == {"ran"}
        assert freed(f"pool:{run.id}")
        assert not worker.logged("Lock released for dead process")
    ran = ids_that_ran_one_after_the_other(run.notes())
    assert sorted(ran) == sorted(result.id for result in results)
    assert len(set(run.notes("pid"))) == len(results)
