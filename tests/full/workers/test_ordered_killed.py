"""Tasks in order, while processes are killed at random and the server of the locks restarts."""

import contextlib
import os
import random
import subprocess
import sys
import threading
from collections import defaultdict

import psutil
import pytest

from django_redislock import locks
from django_redislock.testing import EmbeddedServer
from tests.celery_worker import Worker, outcome
from tests.lock_tools import start
from tests.tools import ROOT, wait_until

from . import ordered_app as tasks
from .rabbitmq import rabbitmq

pytestmark = [pytest.mark.celery, pytest.mark.timeout(3600)]

SECONDS = float(os.environ.get("TESTS_ORDERED_SECONDS", "10"))

WITHIN = 90
"""Seconds until everything that was sent has run. RabbitMQ and Celery need some to start again."""

SENDER = """
import random, sys, time
from tests.celery_app import note
from tests.full.workers import ordered_app as tasks

run, queue, sender = sys.argv[1:]
for number in range(10**9):
    for customer in range(5):
        who = f"{sender}-{customer}"
        try:
            tasks.killed.apply_async((run, who, number), queue=queue)
        except Exception as error:
            note(run, "unsent", who, number, repr(error))
        else:
            note(run, "sent", who, number)
    time.sleep(random.uniform(0, 0.3))
"""


@pytest.fixture
def lock_server(settings):
    with EmbeddedServer(appendonly="yes", appendfsync="always") as server:
        default = settings.CACHES["default"] | {"LOCATION": server.url}
        settings.CACHES = {**settings.CACHES, "default": default}
        yield server


class Stage:
    """Workers and senders that are killed at random, and a server that is paused and restarted."""

    def __init__(self, folder, run, server, broker):
        self.folder, self.run, self.server, self.broker = folder, run, server, broker
        self.queue = f"ordered-{run.id}"
        self.environment = {
            "DJANGO_SETTINGS_MODULE": "tests.full.workers.outage_settings",
            "OUTAGE_URL": server.url,
            "TESTS_VISIBILITY_TIMEOUT": "5",
            "TMPDIR": str(folder),
        }
        if broker:
            self.environment["CELERY_BROKER_URL"] = broker
        self.workers = [self.new_worker() for _ in range(2)]
        self.senders = []
        self.count = 0
        self.kills = 0

    def new_worker(self):
        return Worker(
            self.folder,
            app="tests.full.workers.ordered_app",
            queue=self.queue,
            environment=self.environment,
            broker=self.broker,
        )

    def new_sender(self):
        self.count += 1
        command = [sys.executable, "-c", SENDER, self.run.id, self.queue, f"s{self.count}"]
        environment = os.environ | self.environment
        self.senders.append(subprocess.Popen(command, cwd=ROOT, env=environment))

    def kill_sender(self):
        sender = self.senders.pop(0)
        sender.kill()
        sender.wait()

    def replace_sender(self):
        self.kill_sender()
        self.new_sender()

    def kill_pool_process(self):
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):
            random.choice(random.choice(self.workers).main.children()).kill()
            self.kills += 1

    def kill_worker(self):
        worker = self.workers.pop(0)
        worker.kill()
        self.kills += 4
        self.workers.append(self.new_worker())

    def pause_server(self):
        process = psutil.Process(self.server.pid)
        process.suspend()
        try:
            threading.Event().wait(random.uniform(0.1, 2))
        finally:
            process.resume()

    def restart_server(self):
        self.server.stop()
        threading.Event().wait(random.uniform(0, 1))
        self.server.start()

    def shake(self, is_over):
        """Kill, pause and restart at random moments."""
        actions = [self.kill_pool_process] * 12 + [self.replace_sender] * 3
        actions += [self.pause_server] * 2 + [self.restart_server]
        # The Redis transport of kombu loses a message if its worker is killed between BRPOP and
        # the record that it is not acknowledged.
        if self.broker:
            actions += [self.kill_worker]
        while not is_over.wait(random.uniform(0.05, 0.8)):
            random.choice(actions)()

    def stop_senders(self):
        while self.senders:
            self.kill_sender()

    def close(self):
        self.stop_senders()
        for worker in self.workers:
            worker.stop()


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request, tmp_path):
    if request.param == "redis":
        yield None
        return
    with rabbitmq(tmp_path) as url:
        yield url


def numbers_by_customer(run, word):
    found = defaultdict(list)
    for text in run.notes(word):
        _, customer, number, *_ = text.split()
        found[customer].append(int(number))
    return found


def has_lost_none(run):
    ended = numbers_by_customer(run, "end")
    sent = numbers_by_customer(run, "sent")
    return all(set(numbers) <= set(ended[customer]) for customer, numbers in sent.items())


def out_of_order(run):
    """Return how many tasks began after a task that was sent later, or more than once."""
    late = 0
    for numbers in numbers_by_customer(run, "begin").values():
        last = -1
        for number in numbers:
            late += number <= last
            last = max(last, number)
    return late


def test_no_task_is_lost_or_overlaps_and_the_order_is_kept(tmp_path, run, lock_server, broker):
    stage = Stage(tmp_path, run, lock_server, broker)
    is_over = threading.Event()
    try:
        for worker in stage.workers:
            outcome(worker.send(tasks.ready))
        for _ in range(3):
            stage.new_sender()
        shaking = start(stage.shake, is_over)
        is_over.wait(SECONDS)
        is_over.set()
        shaking.result(60)
        stage.stop_senders()
        wait_until(lambda: has_lost_none(run), timeout=WITHIN, interval=0.5)
        wait_until(lambda: not [*locks.active("ordered:*")], interval=0.5)
        keys, client = locks._server().keys.of(""), locks._server().client
        wait_until(lambda: not client.keys(f"{keys.inboxes}*"), interval=0.5)
    finally:
        is_over.set()
        stage.close()
    assert run.notes("overlap") == []
    assert out_of_order(run) <= stage.kills
