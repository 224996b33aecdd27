"""One package's worker, and the cases: faults of its tasks, and their effects. Each case returns a
cell of the table.
"""

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
from celery import Task, chord
from celery.result import AsyncResult

from tests.tools import ROOT, wait_until

from .bodies import MAX_RETRIES, Tasks, notes, tasks_of

T = TypeVar("T")

GIVE_UP_SECONDS = 15.0

POOL_PROCESSES = 2

START_SECONDS = 60


def seconds_until(
    predicate: Callable[[], Any], *, timeout: float = GIVE_UP_SECONDS
) -> float | None:
    """Return the seconds until `predicate` is true, or None after `timeout`."""
    begun = time.monotonic()
    try:
        wait_until(predicate, timeout=timeout, interval=0.02)
    except AssertionError:
        return None
    return time.monotonic() - begun


class Worker:
    """Context manager that runs a prefork worker with two pool processes."""

    def __init__(self, name: str, folder: Path) -> None:
        self.tasks = tasks_of(name)
        self._app = f"{__package__}.bodies:{name}"
        self._log = folder / f"{name}.log"

    def __enter__(self) -> "Worker":
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "celery", "-A", self._app, "worker"),
                    *("--concurrency", str(POOL_PROCESSES), "--hostname", self.tasks.app.main),
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
        # Send tasks only now, or the last worker's broken connection might receive them.
        says_so = seconds_until(lambda: " ready." in self._log.read_text(), timeout=START_SECONDS)
        answers = says_so and seconds_until(self.tasks["plain"].delay().ready)
        return answers is not None

    def processes(self) -> list[psutil.Process]:
        parent = psutil.Process(self._process.pid)
        return [parent, *parent.children(recursive=True)]

    def __exit__(self, *error: object) -> None:
        self._end()

    def _end(self) -> None:
        # A task that hangs would delay an orderly shutdown.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Run:
    """One case on one worker. Its tasks share a lock, and write notes to one list."""

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        self.id = f"run-{uuid.uuid4().hex}"
        self._client = notes()
        self._client.set(f"{self.id}:hang", 1)

    def begins(self, task_id: str | None = None) -> list[int]:
        """Return the processes that began a task of this run, or the task `task_id`."""
        lines = (line.split() for line in self._client.lrange(self.id, 0, -1))
        return [int(pid) for begun, pid in lines if task_id in (None, begun)]

    def begin(self, task: Task) -> tuple[AsyncResult, int]:
        """Send a task, wait until it runs, and return the result and the process."""
        result = task.delay(self.id)
        [pid] = wait_until(lambda: self.begins(result.id), timeout=START_SECONDS)
        return result, pid

    def go(self) -> None:
        """End the running tasks, and let new tasks end at once."""
        self._client.delete(f"{self.id}:hang")
        self._client.rpush(f"{self.id}:go", *["go"] * 10)

    def let_new_tasks_end(self) -> None:
        self._client.delete(f"{self.id}:hang")

    def free_after(self, task: Task) -> float | None:
        """Send equal tasks until one runs, and return the seconds, or None after a timeout."""
        self.let_new_tasks_end()
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


Case = Callable[[Run], str]


def no_fault(run: Run) -> str:
    """A duplicate is sent while the task runs; then the task ends."""
    task = run.tasks["early"]
    result, _ = run.begin(task)
    task.delay(run.id)
    twice = seconds_until(lambda: len(run.begins()) > 1, timeout=2)
    run.go()
    seconds_until(result.ready)
    free = _free(run, task)
    return f"{'ran twice' if twice else 'ran once'}; {free}"


def pool_process_killed(run: Run) -> str:
    """SIGKILL of the pool process. The message was acknowledged when the task began."""
    task = run.tasks["early"]
    result, pid = run.begin(task)
    os.kill(pid, signal.SIGKILL)
    return f"{_free(run, task)}; task: {_end(result)}"


def killed_with_acks_late(run: Run) -> str:
    """SIGKILL of the pool process, with `acks_late` and `reject_on_worker_lost`."""
    task = run.tasks["late"]
    result, pid = run.begin(task)
    run.let_new_tasks_end()
    os.kill(pid, signal.SIGKILL)
    again = seconds_until(lambda: len(run.begins(result.id)) > 1)
    work = (
        f"not rerun in {GIVE_UP_SECONDS:.0f} s" if again is None else f"rerun after {again:.1f} s"
    )
    return f"{work}; task: {_end(result)}; {_free(run, task)}"


def chord_with_duplicate(run: Run) -> str:
    """A chord of two tasks. One of them conflicts with a running task."""
    task, collect = run.tasks["early"], run.tasks["collect"]
    run.begin(task)
    members = [run.tasks["plain"].si(), task.si(run.id)]
    try:
        chord(members, app=run.tasks.app)(collect.s(f"{run.id}:end"))
    except Exception as error:
        return f"the sender gets {type(error).__name__}: {error}"
    called = seconds_until(lambda: _collected(run))
    if called is not None:
        return f"callback ran after {called:.1f} s"
    run.go()
    late = seconds_until(lambda: _collected(run), timeout=5)
    after = "nor after the running task ended" if late is None else "but after the other ended"
    return f"callback did not run in {GIVE_UP_SECONDS:.0f} s, {after}"


def retry(run: Run) -> str:
    """`self.retry()` each time it runs, with `max_retries=3`."""
    task = run.tasks["retrying"]
    result = task.delay(run.id)
    seconds_until(lambda: len(run.begins(result.id)) == 1 + MAX_RETRIES)
    ran = len(run.begins(result.id))
    seconds_until(result.ready, timeout=2)
    return f"ran {ran} of {1 + MAX_RETRIES} times; task: {result.state}; {_free(run, task)}"


def revoked_in_the_queue(run: Run) -> str:
    """The task is revoked while all pool processes are busy. The time counts from its removal."""
    task = run.tasks["early"]
    for _ in range(POOL_PROCESSES):
        run.tasks["busy"].delay(run.id)
    seconds_until(lambda: len(run.begins()) == POOL_PROCESSES)
    result = task.delay(run.id)
    result.revoke()
    run.go()
    seconds_until(lambda: result.state == "REVOKED")
    return f"task: {result.state}; {_free(run, task)}"


CASES: dict[str, Case] = {
    "no fault: a duplicate is sent, then the task ends": no_fault,
    "SIGKILL of the pool process": pool_process_killed,
    "SIGKILL of the pool process, `acks_late`, `reject_on_worker_lost`": killed_with_acks_late,
    "a chord with a duplicate": chord_with_duplicate,
    "`self.retry()`": retry,
    "revoked while queued": revoked_in_the_queue,
}


def _free(run: Run, task: Task) -> str:
    free = run.free_after(task)
    if free is not None:
        return f"an equal task runs after {free:.1f} s"
    left = run.tasks.seconds_left(task, run.id)
    lock = "" if left is None else f": the lock has {left:.0f} s left"
    return f"**no equal task in {GIVE_UP_SECONDS:.0f} s**{lock}"


def _end(result: AsyncResult) -> str:
    seconds_until(result.ready, timeout=6)
    state, error = result.state, result.result
    return f"{state} {type(error).__name__}" if isinstance(error, Exception) else state


def _collected(run: Run) -> bool:
    with notes() as client:
        return bool(client.llen(f"{run.id}:end"))
