"""A real prefork worker for each module of tests, and the notes that its tasks write."""

import gc
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery.result import AsyncResult

from tests.tools import ROOT, wait_until

from . import app as tasks

STOPS_WITHIN = 15


def outcome(result: AsyncResult, *, timeout: float = 20) -> Any:
    """What a task returned, or the error that it ended with.

    Asks the back end itself: how `get` listens differs with the versions of Celery and redis-py.
    """
    wait_until(result.ready, timeout=timeout, interval=0.02)
    return result.result


class Worker:
    """A Celery worker with four children, on a queue of its own."""

    def __init__(self, folder: Path) -> None:
        self.queue = f"tests-{uuid.uuid4().hex}"
        self.log = folder / "worker.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "celery", "-A", "tests.celery.app", "worker"),
                    *("--concurrency", "4", "--queues", self.queue, "--hostname", self.queue),
                    *("--loglevel", "INFO", "--without-gossip", "--without-mingle"),
                ],
                cwd=ROOT,
                env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def send(self, task, *args, **options) -> AsyncResult:
        return task.apply_async(args, queue=self.queue, **options)

    def logged(self, *texts: str) -> list[str]:
        """The lines of the worker's log that have all of `texts` in them."""
        lines = self.log.read_text().splitlines()
        return [line for line in lines if all(text in line for text in texts)]

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOPS_WITHIN)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture(scope="module")
def worker(tmp_path_factory) -> Iterator[Worker]:
    worker = Worker(tmp_path_factory.mktemp("worker"))
    try:
        # The first answer says that it is up.
        outcome(worker.send(tasks.ready), timeout=40)
        yield worker
    finally:
        worker.stop()
        # A result that goes tells the server so, which must still be there.
        gc.collect()


class Run:
    """What the tasks of one test note, and the word to go on for those that wait for it."""

    def __init__(self) -> None:
        self.id = f"run-{uuid.uuid4().hex}"
        self._notes = tasks.notes()

    def notes(self, word: str = "") -> list[str]:
        return [text for text in self._notes.lrange(self.id, 0, -1) if text.startswith(word)]

    def wait_for(self, word: str, count: int = 1) -> list[str]:
        return wait_until(
            lambda: found if len(found := self.notes(word)) >= count else [], timeout=20
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
