"""A real prefork worker for each module of tests, and the notes of its tasks."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from celery import Celery
from celery.result import AsyncResult
from kombu import Connection

from django_redislock import locks

from . import celery_app as tasks
from .tools import ROOT, wait_until

STOPS_WITHIN = 60

UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc")

MARKS = [
    pytest.mark.celery,
    # Celery 5.4 with redis-py 8, in a chord.
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]


def outcome(result: AsyncResult, *, timeout: float = 60) -> Any:
    """Return the result of a task, or the error with which it ended.

    It polls: how `get` waits depends on the versions of Celery and redis-py.
    """
    wait_until(result.ready, timeout=timeout, interval=0.02)
    return result.result


FREE_WITHIN = 20.0
"""Seconds until a lock is free whose lease is a minute. On a machine of its own it takes two."""


def freed(name: str) -> bool:
    """Wait until nothing holds the lock."""
    wait_until(lambda: locks.get(name) is None, timeout=FREE_WITHIN)
    return True


class Worker:
    """A Celery worker, by default with four pool processes and a queue of its own.

    `broker` is the URL of a broker other than the one in the settings. In a `namespace` it and its
    pool processes have the pids that they would have in a container.
    """

    def __init__(
        self,
        folder: Path,
        *,
        app: str = "tests.celery_app",
        pool: str = "prefork",
        concurrency: int = 4,
        queue: str | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        broker: str | None = None,
        namespace: bool = False,
    ) -> None:
        unique = f"tests-{uuid.uuid4().hex}"
        self.name = f"{unique}@tests"
        self.queue = queue or unique
        self.broker = broker
        self.log = folder / f"{self.name}.log"
        settings = {"DJANGO_SETTINGS_MODULE": "tests.settings", **(environment or {})}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    *(UNSHARE if namespace else ()),
                    *(sys.executable, "-m", "celery", "-A", app, "worker"),
                    *("--pool", pool, "--concurrency", str(concurrency)),
                    *("--queues", self.queue, "--hostname", self.name),
                    *("--loglevel", "INFO", "--without-gossip", "--without-mingle"),
                    *arguments,
                ],
                cwd=ROOT,
                env=os.environ | settings | ({"CELERY_BROKER_URL": broker} if broker else {}),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._namespace = namespace

    @property
    def main(self) -> psutil.Process:
        """Its main process."""
        started = psutil.Process(self.process.pid)
        return started.children()[0] if self._namespace else started

    def send(self, task, *args, **options) -> AsyncResult:
        if not self.broker:
            return task.apply_async(args, queue=self.queue, **options)
        with Connection(self.broker) as connection:
            return task.apply_async(args, queue=self.queue, connection=connection, **options)

    def logged(self, *texts: str) -> list[str]:
        """Return the lines of the log that contain all of `texts`."""
        lines = self.log.read_text().splitlines()
        return [line for line in lines if all(text in line for text in texts)]

    def active(self) -> set[str]:
        """Return the ids of the tasks that run, as far as the main process knows."""
        with Celery(broker=self.broker or tasks.app.conf.broker_url, set_as_current=False) as app:
            replies = app.control.inspect([self.name]).active() or {}
        return {request["id"] for request in replies.get(self.name, ())}

    def kill_child(self, pid: int, task_id: str) -> None:
        """Kill the pool process that runs the task, after the worker has heard that it began."""
        wait_until(lambda: task_id in self.active())
        os.kill(pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kill all its processes, also those that outlived their parent."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired, psutil.NoSuchProcess, IndexError):
            self.main.terminate()
            self.process.wait(STOPS_WITHIN)
        self.kill()


@contextlib.contextmanager
def running_worker(folder: Path, **options: Any) -> Iterator[Worker]:
    """A `Worker` that is up, and stopped at the end."""
    worker = Worker(folder, **options)
    try:
        # The first answer says that it is up.
        outcome(worker.send(tasks.ready), timeout=60)
        yield worker
    finally:
        worker.stop()
        # A result that goes tells the server so, which must still be there.
        gc.collect()


@pytest.fixture(scope="module")
def worker(tmp_path_factory) -> Iterator[Worker]:
    with running_worker(tmp_path_factory.mktemp("worker")) as worker:
        yield worker


class Run:
    """The notes of the tasks of one test, and the permission to go on for those that wait."""

    def __init__(self) -> None:
        self.id = f"run-{uuid.uuid4().hex}"
        self._notes = tasks.notes()

    def notes(self, word: str = "") -> list[str]:
        return [text for text in self._notes.lrange(self.id, 0, -1) if text.startswith(word)]

    def wait_for(self, word: str, count: int = 1) -> list[str]:
        return wait_until(
            lambda: found if len(found := self.notes(word)) >= count else [], timeout=60
        )

    def go(self) -> None:
        self._notes.rpush(f"{self.id}:go", "go")

    def close(self) -> None:
        self._notes.delete(self.id, f"{self.id}:go")
        self._notes.close()


@pytest.fixture
def run() -> Iterator[Run]:
    run = Run()
    yield run
    run.close()


other_run = run
