"""`single_instance` with RabbitMQ for a broker; the results stay in Redis."""

import pytest

from django_redislock import AlreadyRunning, locks
from tests.celery_app import long, stubborn
from tests.celery_worker import outcome, running_worker
from tests.tools import wait_until

from . import pool_app as tasks
from .rabbitmq import rabbitmq
from .test_never_two_at_once import ids_that_ran_one_after_the_other

pytestmark = [pytest.mark.celery]

FREE_WITHIN = 2.0
"""Seconds."""


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rabbitmq")
    with (
        rabbitmq(folder) as url,
        running_worker(folder, app="tests.full.workers.pool_app", broker=url) as worker,
    ):
        yield worker


def pid_of(run, times=1):
    return int(run.wait_for("begin", times)[times - 1].split()[2])


def freed(name):
    wait_until(lambda: locks.get(name) is None, timeout=FREE_WITHIN)
    return True


def test_the_worker_is_connected_to_rabbitmq(worker):
    assert worker.logged("Connected to amqp://")


def test_who_meets_a_holder_is_skipped(worker, run, hold):
    hold(f"pool:{run.id}")
    result = worker.send(tasks.alone, run.id)
    assert outcome(result) is None
    assert result.state == "SUCCESS"
    assert run.notes() == [f"skipped {result.id} by None"]


def test_who_retries_runs_when_the_lock_is_free(worker, run, hold):
    lock = hold(f"pool:{run.id}")
    result = worker.send(tasks.patient, run.id)
    wait_until(lambda: result.state == "RETRY")
    assert isinstance(result.result, AlreadyRunning)
    lock.release()
    assert outcome(result) == "ran"


def test_all_that_retry_run_one_after_the_other(worker, run):
    results = [worker.send(tasks.patient, run.id) for _ in range(10)]
    assert {outcome(result, timeout=60) for result in results} == {"ran"}
    ran = ids_that_ran_one_after_the_other(run.notes())
    assert sorted(ran) == sorted(result.id for result in results)


def test_a_killed_process_leaves_no_lock(worker, run):
    result = worker.send(long, run.id)
    worker.kill_child(pid_of(run), result.id)
    assert freed(f"long:{run.id}")
    assert type(outcome(result)).__name__ == "WorkerLostError"


def test_what_was_killed_is_delivered_again_and_runs(worker, run):
    result = worker.send(stubborn, run.id)
    first = pid_of(run)
    worker.kill_child(first, result.id)
    assert pid_of(run, 2) != first
    assert locks.get(f"long:{run.id}").holder.task_id == result.id
    run.go()
    assert outcome(result) == "ran"
    assert freed(f"long:{run.id}")
