"""A task ends without running, or without releasing its queue lock. The next one runs."""

import base64
import contextlib
import gc
import json
import uuid

import pytest
import redis

from django_redislock import locks
from testproject.settings import redis_database
from tests.celery_worker import FREE_WITHIN, MARKS, Worker, outcome
from tests.tools import wait_until

from . import ended_app as tasks
from .ended_app import MODES

pytestmark = [*MARKS, pytest.mark.timeout(300)]

RELEASES = ("current", "undecorated", "renamed", "foreign")


@pytest.fixture(scope="module")
def all_workers(tmp_path_factory):
    """A worker of each release, and one whose only pool process can be kept busy."""
    folder, foreign = tmp_path_factory.mktemp("workers"), "tests.full.workers.foreign_app"
    urls = {"FOREIGN_BROKER": redis_database(1), "FOREIGN_RESULTS": redis_database(2)}
    with contextlib.ExitStack() as stack:
        workers = {}
        for name in (*RELEASES, "narrow"):
            workers[name] = Worker(
                folder,
                app=foreign if name == "foreign" else "tests.full.workers.ended_app",
                concurrency=2 if name == "current" else 1,
                environment={"TESTS_RELEASE": "current" if name == "narrow" else name} | urls,
            )
            stack.callback(workers[name].stop)
        for worker in workers.values():
            outcome(worker.send(tasks.ready), timeout=120)
        yield workers
        gc.collect()  # a result that goes tells the server so, which must still be there


@pytest.fixture
def workers(all_workers):
    return all_workers


@pytest.fixture
def narrow(all_workers):
    return all_workers["narrow"]


def held(run):
    return list(locks.active(f"ended:{run.id}*"))


def freed(run):
    wait_until(lambda: not held(run), timeout=FREE_WITHIN)


@pytest.fixture
def broker():
    with redis.Redis.from_url(redis_database(1)) as client:
        yield client


def next_runs(task, worker, run, first_id=None):
    """Send the next task until it is not refused, and check that it runs."""

    def sent():
        result = worker.send(task, run.id)
        return result.id != first_id and result

    result = wait_until(sent, timeout=FREE_WITHIN)
    assert outcome(result) == "ran"
    assert f"ran {result.id}" in run.notes()
    freed(run)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("release", ["renamed", "foreign"])
def test_a_worker_that_does_not_know_the_task(workers, run, mode, release):
    task, other = tasks.tasks[mode], workers[release]
    first = other.send(task, run.id)
    assert type(outcome(first)).__name__ == "NotRegistered"
    if release == "renamed":  # it has this package, and does not need the result
        freed(run)
    next_runs(task, workers["current"], run, first.id)


@pytest.mark.parametrize("mode", MODES)
def test_a_worker_that_has_the_task_without_single_instance(workers, run, mode):
    task, other = tasks.tasks[mode], workers["undecorated"]
    first = other.send(task, run.id)
    assert outcome(first) == "ran"
    next_runs(task, workers["current"], run, first.id)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("release", ["current", "renamed"])
def test_a_message_that_the_worker_rejects(workers, run, mode, release):
    task = tasks.tasks[mode]
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


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", UNREADABLE.values(), ids=UNREADABLE)
def test_a_message_that_the_worker_cannot_read(workers, broker, run, mode, change):
    task, queue = tasks.tasks[mode], f"tests-{uuid.uuid4().hex}"
    first = task.apply_async([run.id], queue=queue)
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
@pytest.mark.parametrize("mode", MODES)
def test_a_task_that_is_revoked_before_its_eta(workers, run, mode, how):
    task, worker = tasks.tasks[mode], workers["current"]
    stamp = {"stamped_headers": ["batch"], "batch": run.id}
    first = worker.send(task, run.id, countdown=60, **stamp)
    wait_until(lambda: worker.logged(first.id, "received"))
    REVOKED[how](task, run, first)
    next_runs(task, worker, run, first.id)


@pytest.mark.parametrize("how", REVOKED)
@pytest.mark.parametrize("mode", MODES)
def test_a_task_that_is_revoked_behind_a_busy_pool(workers, narrow, run, other_run, mode, how):
    task = tasks.tasks[mode]
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
