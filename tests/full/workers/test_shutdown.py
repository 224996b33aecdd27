"""A worker ends, in each of the ways in which that happens, while its tasks hold locks."""

import gc
import os
import signal
import time
from contextlib import contextmanager

import pytest

from django_redislock import locks
from tests.celery_app import long
from tests.celery_worker import outcome, running_worker
from tests.tools import wait_until

from . import pool_app as tasks
from .test_never_two_at_once import ids_that_ran_one_after_the_other

pytestmark = [pytest.mark.celery]

FREE_WITHIN = 2.0
"""Seconds after the end of the worker."""

ENDS_WITHIN = 20.0

VISIBILITY_TIMEOUT = 1
"""Seconds after which Redis brokers deliver again what nobody acknowledged."""


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


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def send_signals(worker, *names):
    """One after the other, each when the one before was seen."""
    for seen, name in enumerate(names):
        wait_until(lambda seen=seen: len(worker.logged("shutdown (MainProcess)")) >= seen)
        os.kill(worker.process.pid, getattr(signal, name))


def test_a_warm_shutdown_lets_the_task_end_and_frees_its_lock(start, run):
    with start() as worker:
        result = worker.send(long, run.id)
        run.wait_for("begin")
        send_signals(worker, "SIGTERM")
        wait_until(lambda: worker.logged("Warm shutdown"))
        assert locks.get(f"long:{run.id}").holder.task_id == result.id
        run.go()
        assert worker.process.wait(ENDS_WITHIN) == 0
        assert locks.get(f"long:{run.id}") is None
    assert outcome(result) == "ran"


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


def test_of_duplicates_that_were_given_back_unbegun_one_runs(given_back, run):
    with given_back(lambda worker: [worker.send(tasks.once, run.id) for _ in range(2)]) as sent:
        assert sorted(map(outcome, sent), key=str) == [None, "ran"]
    assert len(run.notes("begin")) == len(run.notes("skipped")) == 1
    assert locks.force_release(f"pool:{run.id}") == 1


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # redis-py 8
def test_an_id_that_has_succeeded_before_runs_though_it_was_given_back_unbegun(given_back, run):
    tasks.app.backend.store_result(run.id, "ran", "SUCCESS")
    with given_back(lambda worker: [worker.send(tasks.alone, run.id, task_id=run.id)]):
        run.wait_for("end")


COLD = {
    "SIGQUIT": ["SIGQUIT"],
    "warm, then SIGQUIT": ["SIGTERM", "SIGQUIT"],
    "SIGINT twice": ["SIGINT", "SIGINT"],
}


@pytest.mark.parametrize(
    "signals",
    [
        pytest.param(signals, id=how, marks=[pytest.mark.slow] * (how != "SIGQUIT"))
        for how, signals in COLD.items()
    ],
)
def test_a_cold_shutdown_frees_the_locks_and_late_work_goes_on_elsewhere(
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


@pytest.mark.slow
def test_a_child_that_is_killed_in_a_cold_shutdown_leaves_no_lock(start, run):
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


@pytest.mark.slow
def test_sigterm_to_the_whole_group_frees_the_lock(start, run):
    with start() as worker:
        worker.send(long, run.id)
        run.wait_for("begin")
        os.killpg(worker.process.pid, signal.SIGTERM)
        worker.process.wait(ENDS_WITHIN)
    assert freed(f"long:{run.id}")


@pytest.mark.slow
def test_children_that_run_one_task_each_leave_no_lock(start, run):
    with start(arguments=["--max-tasks-per-child", "1"]) as worker:
        results = [worker.send(tasks.queued_of_child, run.id) for _ in range(12)]
        assert {outcome(result, timeout=60) for result in results} == {"ran"}
        assert freed(f"pool:{run.id}")
        assert not worker.logged("Lock released for dead process")
    ran = ids_that_ran_one_after_the_other(run.notes())
    assert sorted(ran) == sorted(result.id for result in results)
    assert len(set(run.notes("pid"))) == len(results)


@pytest.mark.slow
def test_of_a_worker_that_is_killed_the_lock_goes_with_its_lease_and_late_work_runs(start, run):
    visibility = {"TESTS_VISIBILITY_TIMEOUT": str(VISIBILITY_TIMEOUT)}
    with start(environment=visibility) as worker:
        result = worker.send(tasks.late_and_leased, run.id)
        first = pid_of(run)
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
        killed = time.monotonic()
        # The system kills the children of a prefork worker with it.
        wait_until(lambda: is_gone(first))
        assert freed(f"late:{run.id}", within=1.5)
    # What is older than that is delivered again to a worker that starts, else much later.
    wait_until(lambda: time.monotonic() > killed + VISIBILITY_TIMEOUT)
    with start(queue=worker.queue, environment=visibility):
        assert pid_of(run, 2) != first
        run.go()
        assert outcome(result) == "ran"
        assert freed(f"late:{run.id}")
