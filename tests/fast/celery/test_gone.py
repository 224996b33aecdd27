"""The worker releases the locks of a dead pool process, also after Redis was unreachable."""

import os
import subprocess
import sys
from contextlib import nullcontext
from uuid import uuid4

import pytest
import redis

from django_redislock import single_instance
from django_redislock.celery import board, worker
from django_redislock.celery.worker import LATE_COMMAND_SECONDS
from django_redislock.lock_types import QueueLock
from django_redislock.testing import EmbeddedServer
from tests.commands import run_process
from tests.lock_tools import hanging
from tests.tools import wait_until

from .tools import run_message

NAME = "tests:gone"


@pytest.fixture(scope="module")
def own_server():
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def own(alias_on, own_server):
    """The manager of locks on a server that the test may suspend."""
    yield alias_on(own_server.url, socket_timeout=0.2)
    with redis.Redis.from_url(own_server.url) as client:
        client.flushdb()


@pytest.fixture
def monitor(monkeypatch, moving_clock):
    """A monitor for which this process is a pool process that is dead."""
    for name in "slots", "_worker_pid":
        monkeypatch.setattr(board, name, None)
    board.create()
    monkeypatch.setattr(board, "_worker_pid", os.getppid())
    monkeypatch.setattr(worker, "_is_dead", lambda pid: True)
    monkeypatch.setattr(worker, "child_id", lambda parent_id, pid: parent_id)
    return worker.Monitor()


@pytest.fixture
def execute(app, own, monitor):
    """Return a function that executes a task, and fails if the task does."""

    def execute(body, **options):
        def work():
            body()
            return "ran"

        decorated = single_instance(key=NAME, using="own", **{"timeout": 30, **options})(work)
        task = app.task(name=f"tests.gone.{uuid4()}")(decorated)
        assert run_message(app, task) == "ran"

    return execute


@pytest.mark.parametrize("at_least_for", [0, 60])
def test_its_lock_is_released_and_looked_for_a_while_longer(
    own, execute, monitor, moving_clock, caplog, at_least_for
):
    def body():
        for _ in range(2):
            monitor.check()
            info = own.get(NAME)
            assert (info and info.state) == ("cooldown" if at_least_for else None)
            assert [event.outcome for event in own.history(NAME)] == ["killed"]
        assert sum("Lock released for dead process" in text for text in caplog.messages) == 1
        assert monitor.dead
        moving_clock.pass_time(LATE_COMMAND_SECONDS + 1)
        monitor.check()
        assert not monitor.dead

    execute(body, at_least_for=at_least_for)


@pytest.mark.parametrize("error", ["hangs", "no alias"])
def test_the_release_is_tried_again_and_logged_once(
    settings, own, own_server, execute, monitor, moving_clock, caplog, error
):
    caches = settings.CACHES

    def body():
        if error == "no alias":
            settings.CACHES = {"default": caches["default"]}
        with hanging(own_server) if error == "hangs" else nullcontext():
            for _ in range(2):
                monitor.check()
                moving_clock.pass_time(1)
        settings.CACHES = caches
        [text] = [text for text in caplog.messages if "not yet released for dead" in text]
        assert f"name={NAME!r}" in text
        wait_until(lambda: monitor.check() or own.get(NAME) is None)

    execute(body)


def test_the_release_is_not_tried_for_longer_than_the_lease(
    own_server, execute, monitor, moving_clock
):
    def body():
        with hanging(own_server):
            monitor.check()
            moving_clock.pass_time(31)
            monitor.check()
        assert not monitor.dead

    execute(body)


@pytest.mark.parametrize("why", ["another process", "no slot"])
def test_a_lock_that_may_be_of_another_process_is_left(monkeypatch, own, execute, monitor, why):
    def body():
        monitor.check()
        assert own.get(NAME).state == "held"

    if why == "another process":
        monkeypatch.setattr(worker, "child_id", lambda parent_id, pid: "another")
    else:
        for slot in board.slots:
            slot.pid = -1
    execute(body)


def test_the_queue_lock_of_a_message_that_the_process_sent_is_left(own, execute, monitor):
    def body():
        lock = own.semaphore(NAME, 2)
        assert QueueLock(lock, "its-token", ("tests.gone", "other")).acquire(60)
        monitor.check()
        assert [each.holder.task_id for each in own.get(NAME).holders] == ["other"]

    execute(body, limit=2)


@pytest.mark.parametrize("waitid", [True, False])
def test_a_process_is_dead_when_it_has_ended(monkeypatch, waitid):
    if not waitid:
        monkeypatch.delattr(os, "waitid")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert not worker._is_dead(child.pid)
    child.communicate(b"\n")
    assert worker._is_dead(child.pid)


FORK = """
import os, sys, threading, time
from django.conf import settings

def make():
    is_making.set()
    time.sleep(0 if os.getpid() != pid else 1)
    return redis.Redis.from_url(sys.argv[1])

settings.configure(CACHES={"default": {"BACKEND": sys.argv[2]}}, REDISLOCK_CLIENT="__main__.make")
import redis
from django_redislock import locks

pid, is_making = os.getpid(), threading.Event()
threading.Thread(target=locks.get, args=["name"]).start()
is_making.wait()
if child := os.fork():
    os.waitpid(child, 0)
else:
    assert locks.lock("name").acquire()
    print("acquired", flush=True)
    os._exit(0)
"""


def test_a_process_can_be_forked_while_the_monitor_connects(own_server):
    backend = "django.core.cache.backends.redis.RedisCache"
    program = [sys.executable, "-W", "ignore", "-c", FORK, own_server.url, backend]
    done = run_process(program=program, DJANGO_SETTINGS_MODULE="")
    assert (done.stdout, done.stderr) == ("acquired\n", "")
