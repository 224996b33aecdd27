"""`single_instance` with RabbitMQ as the broker. The results stay in Redis."""

import celery
import pytest
from kombu import Exchange, Queue

from django_redislock import locks
from tests.celery_app import stubborn
from tests.celery_worker import Worker, freed, outcome, running_worker

from . import pool_app as tasks
from .rabbitmq import rabbitmq
from .test_pools import ids_that_ran_one_after_the_other
from .test_shutdown import pid_of

pytestmark = [pytest.mark.celery]

APP = "tests.full.workers.pool_app"


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with rabbitmq(tmp_path_factory.mktemp("rabbitmq")) as url:
        yield url


@pytest.fixture(scope="module")
def worker(tmp_path_factory, broker):
    with running_worker(tmp_path_factory.mktemp("worker"), app=APP, broker=broker) as worker:
        yield worker


def retries_one_after_the_other(worker, run, count):
    results = [worker.send(tasks.patient, run.id) for _ in range(count)]
    assert {outcome(result) for result in results} == {"ran"}
    ran = ids_that_ran_one_after_the_other(run.notes())
    assert sorted(ran) == sorted(result.id for result in results)


def test_all_tasks_that_retry_run_one_after_the_other(worker, run):
    retries_one_after_the_other(worker, run, 10)


def test_a_task_whose_process_was_killed_is_redelivered_and_runs(worker, run):
    assert worker.logged("Connected to amqp://")
    result = worker.send(stubborn, run.id)
    first = pid_of(run)
    worker.kill_child(first, result.id)
    assert pid_of(run, 2) != first
    assert locks.get(f"long:{run.id}").holder.task_id == result.id
    run.go()
    assert outcome(result) == "ran"
    assert freed(f"long:{run.id}")


@pytest.mark.skipif(celery.VERSION[:2] < (5, 5), reason="Celery makes only classic queues")
def test_tasks_of_a_quorum_queue_retry_after_a_second_if_the_countdown_is_shorter(
    tmp_path, broker, run
):
    name = f"quorum-{run.id}"
    environment = {"TESTS_QUORUM_QUEUE": name}
    worker = Worker(tmp_path, app=APP, broker=broker, queue=name, environment=environment)
    try:
        worker.queue = Queue(
            name,
            Exchange(name, "topic"),
            routing_key=name,
            queue_arguments={"x-queue-type": "quorum"},
        )
        retries_one_after_the_other(worker, run, 3)
        assert worker.logged("patient", "retry: Retry in")
        assert not worker.logged("delayed delivery")  # which would be an error of the set-up
    finally:
        worker.stop()
