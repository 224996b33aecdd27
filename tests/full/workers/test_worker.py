"""What a prefork worker does beyond the table in `test_cases.py`."""

import base64
import json
import os
import signal
import uuid

import pytest
import redis
from celery import Task, chain
from celery.exceptions import TaskRevokedError

from django_redislock import AlreadyRunning, locks
from testproject.settings import redis_database
from tests import celery_app as tasks
from tests.celery_worker import FREE_WITHIN, MARKS, freed, outcome, running_worker
from tests.tools import wait_until

pytestmark = MARKS

ENDS_WITHIN = 20.0


def begun(run, times=1):
    """Wait for `times` executions, and return the task id and the pid of the last one."""
    _, task_id, pid = run.wait_for("begin", times)[times - 1].split()
    return task_id, int(pid)


# Conflicts


def test_a_chain_continues_after_a_retry(worker, run):
    running = worker.send(tasks.long, run.id)
    begun(run)
    first = tasks.patient.s(run.id).set(queue=worker.queue)
    result = chain(first, tasks.collect.s().set(queue=worker.queue)).apply_async()
    wait_until(lambda: result.parent.state == "RETRY")
    assert isinstance(result.parent.result, AlreadyRunning)
    assert result.parent.result.task_id == running.id
    run.go()
    assert (outcome(running), outcome(result)) == ("ran", 0)


def test_a_soft_time_limit_ends_a_wait(worker, run):
    running = worker.send(tasks.long, run.id)
    begun(run)
    result = worker.send(tasks.impatient, run.id)
    assert "SoftTimeLimitExceeded" in repr(outcome(result))
    assert locks.get(f"long:{run.id}").waiters == 0
    run.go()
    assert outcome(running) == "ran"


def test_a_newer_task_replaces_a_queued_one(worker, run):
    first = worker.send(tasks.replacing, run.id, countdown=60)
    second = worker.send(tasks.replacing, run.id)
    assert isinstance(outcome(first), TaskRevokedError)
    assert run.notes("replaced") == [f"replaced {first.id} by {second.id}"]
    run.go()
    assert outcome(second) == "ran"
    assert [text.split()[1] for text in run.notes("begin")] == [second.id]
    assert freed(f"queued:{run.id}")


# Dead processes


@pytest.mark.skipif(
    not hasattr(Task, "retry_on_worker_lost"), reason="this Celery retries for no dead process"
)
def test_a_task_that_the_worker_retries_for_a_dead_process_runs(worker, run):
    result = worker.send(tasks.outliving, run.id)
    _, first = begun(run)
    worker.kill_child(first, result.id)
    task_id, second = begun(run, times=2)
    assert (task_id, second != first) == (result.id, True)
    run.go()
    assert outcome(result) == "ran"
    assert freed(f"long:{run.id}")


def test_a_cold_shutdown_releases_the_locks_and_late_tasks_run_elsewhere(tmp_path, run, other_run):
    with running_worker(tmp_path) as worker:
        worker.send(tasks.long, run.id)
        result = worker.send(tasks.stubborn, other_run.id)
        _, first = begun(other_run)
        begun(run)
        os.kill(worker.process.pid, signal.SIGTERM)
        wait_until(lambda: worker.logged("shutdown (MainProcess)"))
        os.kill(worker.process.pid, signal.SIGQUIT)
        worker.process.wait(ENDS_WITHIN)
    assert freed(f"long:{run.id}")
    assert freed(f"long:{other_run.id}")
    with running_worker(tmp_path, queue=worker.queue):
        assert begun(other_run, 2)[1] != first
        other_run.go()
        assert outcome(result) == "ran"
    assert len(run.notes("begin")) == 1  # its message was acknowledged before it ran


# Messages that the worker drops


def with_body(body):
    return lambda message: message.update(body=base64.b64encode(body).decode())


def with_header(name, value):
    return lambda message: message["headers"].update({name: value})


DROPPED = {
    "a task that it does not know": with_header("task", "tests.unknown"),
    "a serializer that it does not accept": lambda message: message.update(
        {"content-type": "application/x-python-serialize"}
    ),
    "a body that is no JSON": with_body(b"{["),
    "keyword arguments that are a list": with_body(b"[[1], [2], {}]"),
    "a compression that it lacks": with_header("compression", "application/zstd"),
}


@pytest.mark.parametrize("change", DROPPED.values(), ids=DROPPED)
def test_after_a_message_that_the_worker_drops_the_next_one_is_sent(worker, run, change):
    task, queue = tasks.queued["until_executed"], f"tests-{uuid.uuid4().hex}"
    first = task.apply_async([run.id], queue=queue)
    with redis.Redis.from_url(redis_database(1)) as broker:
        message = json.loads(broker.lpop(queue))
        change(message)
        broker.lpush(worker.queue, json.dumps(message))

    def sent():
        result = worker.send(task, run.id)
        return result.id != first.id and result

    result = wait_until(sent, timeout=FREE_WITHIN)
    run.go()
    assert outcome(result) == "ran"
    assert freed(f"queued:{run.id}")
