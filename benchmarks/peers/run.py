"""One package's worker, and what can be asked of it."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil
from celery import Task
from celery.result import AsyncResult

from tests.tools import ROOT, wait_until

from .apps import tasks_of
from .bodies import Tasks, notes

T = TypeVar("T")

PATIENCE = 15.0  # seconds after which a case gives up

CHILDREN = 2

STARTS_WITHIN = 60


def seconds_until(predicate: Callable[[], Any], *, patience: float = PATIENCE) -> float | None:
    """Seconds until `predicate` is true; None if it was not within `patience`."""
    begun = time.monotonic()
    try:
        wait_until(predicate, timeout=patience, interval=0.02)
    except AssertionError:
        return None
    return time.monotonic() - begun


class Worker:
    """A prefork worker with two children, for as long as ``with``."""

    def __init__(self, name: str, folder: Path) -> None:
        self.tasks = tasks_of(name)
        self._app = f"{__package__}.apps:{name}"
        self._log = folder / f"{name}.log"

    def __enter__(self) -> "Worker":
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "celery", "-A", self._app, "worker"),
                    *("--concurrency", str(CHILDREN), "--hostname", self.tasks.app.main),
                    *("--loglevel", "INFO", "--without-gossip", "--without-mingle"),
                ],
                cwd=ROOT,
                env=dict(os.environ),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if not self._is_up():
            self._end()
            raise RuntimeError(f"The worker did not start:\n{self._log.read_text()}")
        return self

    def _is_up(self) -> bool:
        # Nothing is sent before, or the last worker's broken connection might yet take it.
        says_so = seconds_until(lambda: " ready." in self._log.read_text(), patience=STARTS_WITHIN)
        answers = says_so and seconds_until(self.tasks.plain.delay().ready)
        return answers is not None

    def processes(self) -> list[psutil.Process]:
        parent = psutil.Process(self._process.pid)
        return [parent, *parent.children(recursive=True)]

    def __exit__(self, *error: object) -> None:
        self._end()

    def _end(self) -> None:
        # Nothing of it is wanted any more, nor may a task that hangs hold up the rest.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Run:
    """One case on one worker: its tasks share a lock, and leave their notes in one list."""

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        self.id = f"run-{uuid.uuid4().hex}"
        self._client = notes()
        self._client.set(f"{self.id}:hang", 1)

    def begins(self, task_id: str | None = None) -> list[int]:
        """The processes that began a task of this run: any, or that of `task_id`."""
        lines = (line.split() for line in self._client.lrange(self.id, 0, -1))
        return [int(pid) for begun, pid in lines if task_id in (None, begun)]

    def begin(self, task: Task) -> tuple[AsyncResult, int]:
        """Send, and wait until it runs: the result, and the process."""
        result = task.delay(self.id)
        [pid] = wait_until(lambda: self.begins(result.id), timeout=STARTS_WITHIN)
        return result, pid

    def go(self) -> None:
        """Let those that run end, and those that come not take their time."""
        self._client.delete(f"{self.id}:hang")
        self._client.rpush(f"{self.id}:go", *["go"] * 10)

    def hang_no_more(self) -> None:
        self._client.delete(f"{self.id}:hang")

    def free_after(self, task: Task) -> float | None:
        """Send equal tasks until one runs: the seconds; None if none did."""
        self.hang_no_more()
        sent: set[str] = set()
        before = len(self.begins())

        def one_ran() -> bool:
            task_id = str(uuid.uuid4())
            sent.add(task_id)
            task.apply_async([self.id], task_id=task_id)
            pause = time.monotonic() + 0.2
            while time.monotonic() < pause:
                if len(self.begins()) > before and any(map(self.begins, sent)):
                    return True
                time.sleep(0.01)
            return False

        return seconds_until(one_ran)

    def close(self) -> None:
        self.go()
        self._client.close()
