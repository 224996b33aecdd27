"""What is done to a task, and what is seen then. Each answers with a cell of the table."""

import os
import signal
import time
from collections.abc import Callable

from celery import Task, chord
from celery.result import AsyncResult

from .bodies import MAX_RETRIES, notes
from .run import CHILDREN, PATIENCE, Run, seconds_until

Case = Callable[[Run], str]


def no_fault(run: Run) -> str:
    """A duplicate beside the running one; then that one ends."""
    task = run.tasks.early
    result, _ = run.begin(task)
    task.delay(run.id)
    twice = seconds_until(lambda: len(run.begins()) > 1, patience=2)
    run.go()
    seconds_until(result.ready)
    free = _free(run, task)
    return f"{'run twice' if twice else 'one ran'}; {free}"


def child_killed(run: Run) -> str:
    """SIGKILL of the child; the message was acknowledged when the task began."""
    task = run.tasks.early
    result, pid = run.begin(task)
    os.kill(pid, signal.SIGKILL)
    return f"{_free(run, task)}; task: {_end(result)}"


def child_killed_acks_late(run: Run) -> str:
    """SIGKILL of the child; `acks_late` and `reject_on_worker_lost`."""
    task = run.tasks.late
    result, pid = run.begin(task)
    run.hang_no_more()
    os.kill(pid, signal.SIGKILL)
    again = seconds_until(lambda: len(run.begins(result.id)) > 1)
    work = f"not run again in {PATIENCE:.0f} s" if again is None else f"run again, {again:.1f} s"
    return f"{work}; task: {_end(result)}; {_free(run, task)}"


def hard_time_limit(run: Run) -> str:
    """`time_limit=1`, and a task that takes longer. Counted from the end of the second."""
    task = run.tasks.limited
    result, _ = run.begin(task)
    run.hang_no_more()
    time.sleep(1)
    return f"{_free(run, task)}; task: {_end(result)}"


def chord_with_duplicate(run: Run) -> str:
    """A chord of two, one of which meets a running task."""
    task, collect = run.tasks.early, run.tasks.collect
    run.begin(task)
    members = [run.tasks.plain.si(), task.si(run.id)]
    try:
        chord(members, app=run.tasks.app)(collect.s(f"{run.id}:end"))
    except Exception as error:
        return f"the sender gets {type(error).__name__}: {error}"
    called = seconds_until(lambda: _collected(run))
    if called is not None:
        return f"callback ran, {called:.1f} s"
    run.go()
    late = seconds_until(lambda: _collected(run), patience=5)
    after = "nor after the running one had ended" if late is None else "but when it had ended"
    return f"callback not run in {PATIENCE:.0f} s, {after}"


def retry(run: Run) -> str:
    """`self.retry()` each time it runs, with `max_retries=3`."""
    task = run.tasks.retrying
    result = task.delay(run.id)
    seconds_until(lambda: len(run.begins(result.id)) == 1 + MAX_RETRIES)
    ran = len(run.begins(result.id))
    seconds_until(result.ready, patience=2)
    return f"ran {ran} of {1 + MAX_RETRIES} times; task: {result.state}; {_free(run, task)}"


def revoked_in_the_queue(run: Run) -> str:
    """Revoked while all children are busy. Counted from when the worker has dropped it."""
    task = run.tasks.early
    for _ in range(CHILDREN):
        run.tasks.busy.delay(run.id)
    seconds_until(lambda: len(run.begins()) == CHILDREN)
    result = task.delay(run.id)
    result.revoke()
    run.go()
    seconds_until(lambda: result.state == "REVOKED")
    return f"task: {result.state}; {_free(run, task)}"


CASES: dict[str, Case] = {
    "no fault: a duplicate, then the end": no_fault,
    "SIGKILL of the child": child_killed,
    "SIGKILL of the child, `acks_late`, `reject_on_worker_lost`": child_killed_acks_late,
    "hard time limit": hard_time_limit,
    "a chord with a duplicate": chord_with_duplicate,
    "`self.retry()`": retry,
    "revoked in the queue": revoked_in_the_queue,
}


def _free(run: Run, task: Task) -> str:
    free = run.free_after(task)
    if free is not None:
        return f"an equal one runs after {free:.1f} s"
    left = run.tasks.seconds_left(task, run.id)
    lock = "" if left is None else f": its lock has {left:.0f} s left"
    return f"**no equal one in {PATIENCE:.0f} s**{lock}"


def _end(result: AsyncResult) -> str:
    seconds_until(result.ready, patience=6)
    state, error = result.state, result.result
    return f"{state} {type(error).__name__}" if isinstance(error, Exception) else state


def _collected(run: Run) -> bool:
    with notes() as client:
        return bool(client.llen(f"{run.id}:end"))
