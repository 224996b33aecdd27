"""A real prefork worker for each module of tests, and the notes that its tasks write."""

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

import pytest
from celery import Celery
from celery.result import AsyncResult
from kombu import Connection

from . import celery_app as tasks
from .tools import ROOT, wait_until

STOPS_WITHIN = 60


def outcome(result: AsyncResult, *, timeout: float = 60) -> Any:
    """What a task returned, or the error that it ended with.

    Asks the back end itself: how `get` listens differs with the versions of Celery and redis-py.
    """
    wait_until(result.ready, timeout=timeout, interval=0.02)
    return result.result


class Worker:
    """A Celery worker with four children, on a queue of its own, unless told otherwise.

    `broker` is the URL of another one than the settings name. `wrapper` is a command that runs
    the worker.
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
        wrapper: Sequence[str] = (),
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
                    *wrapper,
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

    def send(self, task, *args, **options) -> AsyncResult:
        if not self.broker:
            return task.apply_async(args, queue=self.queue, **options)
        with Connection(self.broker) as connection:
            return task.apply_async(args, queue=self.queue, connection=connection, **options)

    def logged(self, *texts: str) -> list[str]:
        """The lines of the worker's log that have all of `texts` in them."""
        lines = self.log.read_text().splitlines()
        return [line for line in lines if all(text in line for text in texts)]

    def active(self) -> set[str]:
        """The ids of the tasks of which its main process has heard that a child runs them."""
        with Celery(broker=self.broker or tasks.app.conf.broker_url, set_as_current=False) as app:
            told = app.control.inspect([self.name]).active() or {}
        return {request["id"] for request in told.get(self.name, ())}

    def kill_child(self, pid: int, task_id: str) -> None:
        """SIGKILL to the child that runs that task.

        Where another child ends at that moment, as in the test before, a task of which the main
        process has not heard yet would be given to another child, and not fail.
        """
        wait_until(lambda: task_id in self.active())
        os.kill(pid, signal.SIGKILL)

    def kill(self) -> None:
        """SIGKILL to all its processes, those too that outlived their parent."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
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
    """What the tasks of one test note, and the word to go on for those that wait for it."""

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


@pytest.fixture
def other_run() -> Iterator[Run]:
    run = Run()
    yield run
    run.close()
