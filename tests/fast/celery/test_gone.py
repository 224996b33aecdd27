"""The worker releases the locks of a dead pool process, also after Redis was unreachable."""

import os
import subprocess
import sys
from types import SimpleNamespace
from uuid import uuid4

import pytest
from celery._state import pop_current_task, push_current_task
from celery.worker.state import successful_requests, task_ready

from django_redislock import clock, locks, single_instance
from django_redislock.celery import worker
from django_redislock.celery.worker import (
    CHECK_INTERVAL_SECONDS,
    LATE_COMMAND_SECONDS,
    DeadExecution,
)
from django_redislock.identity import process_id
from django_redislock.lock_types import QueueLock
from django_redislock.tasks.single import queue_lock_token
from django_redislock.testing import EmbeddedServer
from tests.lock_tools import hanging
from tests.tools import wait_until

NAME = "tests:gone"


@pytest.fixture(scope="module")
def own_server():
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def own(settings, own_server):
    """The manager of locks on a server that the test may suspend."""
    core = "django.core.cache.backends.redis.RedisCache"
    cache = {"BACKEND": core, "LOCATION": own_server.url, "OPTIONS": {"socket_timeout": 0.2}}
    settings.CACHES = {**settings.CACHES, "own": cache}
    return locks.using("own")


@pytest.fixture
def task(app, own):
    @app.task(name="tests.gone")
    @single_instance(key=lambda: NAME, using="own", timeout=30)
    def work(): ...

    return app.tasks["tests.gone"]


def hold(task, lock, task_id="its-id"):
    """Acquire the lock in an execution of this process, which counts as dead."""
    task.push_request(id=task_id)
    push_current_task(task)
    assert lock.acquire()
    pop_current_task()
    task.pop_request()


@pytest.fixture
def held(own, task):
    """The lock of an execution that counts as dead."""
    lock = own.lock(NAME)
    holder = (task.name, "its-id")
    hold(task, lock)
    assert (own.get(NAME).holder.task_name, own.get(NAME).holder.task_id) == holder
    yield lock
    own.force_release(NAME)


def gone(task, *, seconds_ago=0.0, process=None, searches=False, has_ended=False):
    request = SimpleNamespace(task=task, id="its-id", args=(), kwargs={}, has_ended=has_ended)
    since = clock.now() - seconds_ago
    return DeadExecution(request, {process or process_id()}, since, searches=searches)


def test_the_lock_is_released_and_looked_for_a_while_longer(own, task):
    task_id = uuid4()
    hold(task, own.lock(NAME), task_id)
    execution = gone(task)
    execution.request.id = task_id
    execution.request.kwargs = {"user": 1}  # that its class added to the message
    assert not execution.is_settled()
    assert own.get(NAME) is None
    assert gone(task, seconds_ago=LATE_COMMAND_SECONDS + 1).is_settled()


def test_the_release_is_tried_again_if_redis_is_unreachable(own, own_server, task, held, caplog):
    execution = gone(task)
    with hanging(own_server):
        assert [execution.is_settled() for _ in range(2)] == [False, False]
        assert gone(task, seconds_ago=31).is_settled(), "its lease has run out by now"
    assert sum("Lock not yet released for dead process" in text for text in caplog.messages) == 2
    wait_until(lambda: execution.is_settled() or own.get(NAME) is None)
    assert own.get(NAME) is None


def test_a_cooldown_is_not_released_again(own, task, held, caplog):
    execution = gone(task)
    assert own.release_for(NAME, held.token, at_least_for=60)
    assert own.get(NAME).state == "cooldown"
    assert not execution.is_settled()
    assert "Lock released for dead process" not in caplog.text


def test_the_least_time_outlives_the_process(own, task):
    @task.app.task(name="tests.kept")
    @single_instance(key=lambda: NAME, using="own", timeout=30, at_least_for=60)
    def work(): ...

    kept = task.app.tasks["tests.kept"]
    hold(kept, own.lock(NAME, at_least_for=60))
    assert not gone(kept).is_settled()
    assert own.get(NAME).state == "cooldown"
    own.force_release(NAME)


@pytest.mark.parametrize("whose", ["of another process", "of a message of its own"])
def test_a_lock_of_another_holder_is_left(own, task, held, whose):
    if whose == "of another process":
        assert not gone(task, process="another").is_settled()
    else:
        QueueLock(held, queue_lock_token("its-id"), (task.name, "its-id")).inherit(30)
        assert not gone(task).is_settled()
    assert own.get(NAME) is not None


def test_another_error_is_logged_once_and_not_tried_again(settings, own, task, caplog):
    settings.CACHES = {alias: settings.CACHES[alias] for alias in ("default",)}
    assert gone(task).is_settled()
    assert "Lock not released for dead process" in caplog.text


@pytest.fixture
def others(own, task):
    """Locks that it held under other names. The second one is not renewed, and so stays."""
    names = [f"{NAME}:other", f"{NAME}:kept"]
    hold(task, own.lock(names[0]))
    hold(task, own.lock(names[1], auto_renewal=False))
    yield names
    for name in names:
        own.force_release(name)


@pytest.mark.parametrize("args", [(), (1,)], ids=["has a name", "has none, by its message"])
def test_its_locks_with_other_names_are_searched_once(own, task, others, args):
    execution = gone(task, seconds_ago=CHECK_INTERVAL_SECONDS, searches=True)
    execution.request.args = args
    assert not execution.is_settled()
    assert [info.name for info in own.active()] == others[1:]
    assert not execution.searches


@pytest.mark.parametrize(
    "how", [{"seconds_ago": 0}, {"has_ended": True}, {"searches": False}], ids=str
)
def test_all_locks_are_searched_only_if_necessary(own, task, others, how):
    execution = gone(task, **{"seconds_ago": CHECK_INTERVAL_SECONDS, "searches": True, **how})
    assert not execution.is_settled()
    assert set(own.get_many(others)) == set(others)


def test_locks_that_may_need_a_cooldown_are_not_searched(own, task, others):
    @task.app.task(name="tests.least")
    @single_instance(key=lambda: NAME, using="own", at_least_for=60)
    def work(): ...

    throttled = task.app.tasks["tests.least"]
    assert not gone(throttled, seconds_ago=CHECK_INTERVAL_SECONDS, searches=True).is_settled()
    assert [info.state for info in own.get_many(others).values()] == ["held", "held"]


def test_a_task_without_single_instance_holds_nothing(task):
    def work(): ...

    plain = task.app.task(name="tests.plain")(work)
    assert gone(task.app.tasks[plain.name]).is_settled()


class FromThePool:
    """What Celery's own class of requests does."""

    id = "its-id"

    def __init__(self): ...

    def on_failure(self, error, send_failed_event=True, return_ok=False): ...


class Request(worker.WatchedRequest, FromThePool): ...


def test_the_worker_knows_an_end_that_the_process_reported():
    lost, failed, done = Request(), Request(), Request()
    lost.on_failure("its process is lost")
    failed.on_failure("an error", return_ok=True)
    assert [each.has_ended for each in (lost, failed, done)] == [False, True, False]
    task_ready(done, successful=True)
    assert done.has_ended
    successful_requests.discard(done.id)


@pytest.mark.parametrize("waitid", [True, False])
def test_a_process_is_dead_when_it_has_ended(monkeypatch, waitid):
    if not waitid:
        monkeypatch.delattr(os, "waitid")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert not worker._is_dead(child.pid)
    child.communicate(b"\n")
    assert worker._is_dead(child.pid)


def test_a_process_that_is_being_forked_is_not_dead():
    watch = worker.Monitor()
    watch._pool = SimpleNamespace(info={"processes": [None, os.getpid()]})
    assert watch._take_dead_pids() == set()


def test_a_worker_that_starts_twice_in_one_process_watches_its_tasks_once(app, task):
    """As in the tests of a project, by `celery.contrib.testing`."""
    for _ in range(2):
        worker.watch_tasks(SimpleNamespace(app=app))
    assert task.Request.__mro__.count(worker.WatchedRequest) == 1
