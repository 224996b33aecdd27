"""A task ends without running, or without releasing its queue lock. The next one runs."""

import base64
import gc
import json
import uuid
from contextlib import ExitStack

import pytest
import redis

from django_redislock import locks
from testproject.settings import redis_database
from tests.celery_worker import FREE_WITHIN, MARKS, Worker, outcome
from tests.tools import wait_until

from . import ended_app as tasks
from .ended_app import MODES

pytestmark = [*MARKS, pytest.mark.timeout(300), pytest.mark.parametrize("mode", MODES)]


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    """A worker of each release, and one whose only pool process can be kept busy."""
    folder = tmp_path_factory.mktemp("workers")
    app = "tests.full.workers.ended_app"
    renamed = {"TESTS_RELEASE": "renamed"}
    workers = {
        "current": Worker(folder, app=app, concurrency=2),
        "renamed": Worker(folder, app=app, concurrency=1, environment=renamed),
        "narrow": Worker(folder, app=app, concurrency=1),
    }
    with ExitStack() as stack:
        for worker in workers.values():
            stack.callback(worker.stop)
        for worker in workers.values():
            outcome(worker.send(tasks.ready), timeout=120)
        yield workers
        gc.collect()  # a result that goes tells the server so, which must still be there


@pytest.fixture
def task(mode):
    return tasks.tasks[mode]


def next_runs(task, worker, run, first_id):
    """Send the next task until it is not refused, and check that it runs."""

    def sent():
        result = worker.send(task, run.id)
        return result.id != first_id and result

    result = wait_until(sent, timeout=FREE_WITHIN)
    assert outcome(result) == "ran"
    assert f"ran {result.id}" in run.notes()
    wait_until(lambda: not [*locks.active(f"ended:{run.id}*")], timeout=FREE_WITHIN)


def test_a_worker_that_does_not_know_the_task(workers, run, task):
    first = workers["renamed"].send(task, run.id)
    assert type(outcome(first)).__name__ == "NotRegistered"
    wait_until(lambda: not [*locks.active(f"ended:{run.id}*")], timeout=FREE_WITHIN)
    next_runs(task, workers["current"], run, first.id)


@pytest.mark.parametrize("release", ["current", "renamed"])
def test_a_message_that_the_worker_rejects(workers, run, task, release):
    first = workers[release].send(task, run.id, serializer="pickle")  # which it does not accept
    next_runs(task, workers["current"], run, first.id)


def with_body(body):
    return lambda message: message.update(body=base64.b64encode(body).decode())


def with_header(name, value):
    return lambda message: message["headers"].update({name: value})


UNREADABLE = {
    "a body that is no JSON": with_body(b"{["),
    "keyword arguments that are a list": with_body(b"[[1], [2], {}]"),
    "a compression that the worker lacks": with_header("compression", "application/zstd"),
    "retries that are no number": with_header("retries", "x"),
}


@pytest.mark.parametrize("change", UNREADABLE.values(), ids=UNREADABLE)
def test_a_message_that_the_worker_cannot_read(workers, run, task, change):
    queue = f"tests-{uuid.uuid4().hex}"
    first = task.apply_async([run.id], queue=queue)
    with redis.Redis.from_url(redis_database(1)) as broker:
        message = json.loads(broker.lpop(queue))
        change(message)
        broker.lpush(workers["current"].queue, json.dumps(message))
    next_runs(task, workers["current"], run, first.id)


REVOKED = {
    "by id": lambda task, run, first: first.revoke(),
    "by header": lambda task, run, first: task.app.control.revoke_by_stamped_headers(
        {"batch": [run.id]}
    ),
}


@pytest.mark.parametrize("how", REVOKED)
def test_a_task_that_is_revoked_before_its_eta(workers, run, task, how):
    worker = workers["current"]
    stamp = {"stamped_headers": ["batch"], "batch": run.id}
    first = worker.send(task, run.id, countdown=60, **stamp)
    wait_until(lambda: worker.logged(first.id, "received"))
    REVOKED[how](task, run, first)
    next_runs(task, worker, run, first.id)


@pytest.mark.parametrize("how", REVOKED)
def test_a_task_that_is_revoked_behind_a_busy_pool(workers, run, other_run, task, how):
    narrow = workers["narrow"]
    blocking = narrow.send(tasks.busy, other_run.id)
    other_run.wait_for("begin")
    stamp = {"stamped_headers": ["batch"], "batch": run.id}
    first = narrow.send(task, run.id, **stamp)
    wait_until(lambda: narrow.logged(first.id, "received"))
    REVOKED[how](task, run, first)
    next_runs(task, workers["current"], run, first.id)
    other_run.go()
    assert outcome(blocking) == "ran"
    assert f"ran {first.id}" not in run.notes()
