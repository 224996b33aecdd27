"""The worker releases the locks of a dead pool process, also after Redis was unreachable."""

import multiprocessing
import os
import subprocess
import sys
import time
from uuid import uuid4

import pytest
import redis

from django_redislock import locks, single_instance
from django_redislock.celery import board, worker
from django_redislock.celery.worker import LATE_COMMAND_SECONDS
from django_redislock.lock_types import QueueLock
from django_redislock.testing import EmbeddedServer
from tests.lock_tools import hanging
from tests.tools import wait_until

from .tools import run_message

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

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
    yield locks.using("own")
    with redis.Redis.from_url(own_server.url) as client:
        client.flushdb()


@pytest.fixture
def monitor(monkeypatch, moving_clock):
    """The monitor of this process, which is the worker."""
    for name in "_memory", "_worker_pid":
        monkeypatch.setattr(board, name, None)
    board.create()
    return worker.Monitor()


@pytest.fixture
def kill(app, own, monitor):
    """Return a function that kills a pool process while it runs a task."""

    def kill(before=lambda: None, **options):
        def work():
            before()
            has_begun.set()
            time.sleep(60)

        decorated = single_instance(key=NAME, using="own", **{"timeout": 30, **options})(work)
        task = app.task(name=f"tests.gone.{uuid4()}")(decorated)
        fork = multiprocessing.get_context("fork")
        has_begun = fork.Event()
        process = fork.Process(target=run_message, args=(app, task))
        process.start()
        assert has_begun.wait(60)
        assert process.pid in {each.holder.pid for each in own.get(NAME).holders}
        process.kill()
        process.join()

    return kill


def test_its_lock_is_released_and_looked_for_a_while_longer(own, kill, monitor, moving_clock):
    kill()
    monitor.check()
    assert own.get(NAME) is None
    assert monitor.dead
    moving_clock.pass_time(LATE_COMMAND_SECONDS + 1)
    monitor.check()
    assert not monitor.dead


def test_the_release_is_tried_again_until_the_lease_has_expired(
    own, own_server, kill, monitor, moving_clock, caplog
):
    kill()
    with hanging(own_server):
        for _ in range(2):
            monitor.check()
    [text] = [text for text in caplog.messages if "not yet released for dead process" in text]
    assert f"name={NAME!r}" in text
    wait_until(lambda: monitor.check() or own.get(NAME) is None)
    kill()
    with hanging(own_server):
        monitor.check()
        moving_clock.pass_time(31)
        monitor.check()
    assert not monitor.dead


def test_a_cooldown_outlives_the_process(own, kill, monitor, caplog):
    kill(at_least_for=60)
    for _ in range(2):
        monitor.check()
        assert own.get(NAME).state == "cooldown"
    assert sum("Lock released for dead process" in text for text in caplog.messages) == 1


def test_a_lock_of_another_process_is_left(own, kill, monitor):
    kill()
    own.force_release(NAME)
    assert own.lock(NAME).acquire()
    monitor.check()
    assert own.get(NAME).holder.pid == os.getpid()


def test_another_error_is_logged_once_and_not_tried_again(settings, kill, monitor, caplog):
    kill()
    settings.CACHES = {alias: settings.CACHES[alias] for alias in ("default",)}
    monitor.check()
    assert "Lock not released for dead process" in caplog.text
    assert not monitor.dead


def test_the_queue_lock_of_a_message_that_the_process_sent_is_left(own, kill, monitor):
    def send():
        lock = own.semaphore(NAME, 2)
        assert QueueLock(lock, "its-token", ("tests.gone", "other")).acquire(60)

    kill(send, limit=2)
    monitor.check()
    assert own.get(NAME).holder.task_id == "other"


def test_a_lock_for_which_there_is_no_room_is_left_until_it_expires(
    monkeypatch, own, kill, monitor
):
    monkeypatch.setattr(board, "SLOT_BYTES", 9)
    kill()
    monitor.check()
    assert own.get(NAME) is not None


def test_a_task_that_has_ended_is_not_shown(app, own, monitor):
    @app.task(name="tests.ended")
    @single_instance(key=NAME, using="own")
    def work():
        return [shown.name for shown in board.shown()]

    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    process = fork.Process(target=lambda: there.send(run_message(app, work)))
    process.start()
    assert here.poll(60)
    assert here.recv() == [NAME]
    process.join()
    assert [*board.shown()] == []
    assert run_message(app, work) == []  # this is no pool process


@pytest.mark.parametrize("waitid", [True, False])
def test_a_process_is_dead_when_it_has_ended(monkeypatch, waitid):
    if not waitid:
        monkeypatch.delattr(os, "waitid")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert not worker._is_dead(child.pid)
    child.communicate(b"\n")
    assert worker._is_dead(child.pid)
