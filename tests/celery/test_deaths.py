"""A task's process is gone while it holds its lock, whose lease is a minute."""

import os
import signal

import pytest

from django_redislock import locks
from tests.tools import wait_until

from . import app as tasks
from .conftest import outcome

pytestmark = [
    pytest.mark.celery,
    # Celery 5.4 with redis-py 8, in a chord.
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]

FREE_WITHIN = 2.0
"""Seconds."""


def begun(run, times=1):
    """The task's id and the process of the last of so many executions."""
    found = wait_until(lambda: (all_begun := run.notes("begin"))[times - 1 :] and all_begun)
    _, task_id, pid = found[-1].split()
    return task_id, int(pid)


def freed(run):
    wait_until(lambda: locks.get(f"long:{run.id}") is None, timeout=FREE_WITHIN)
    return True


def test_a_killed_process_leaves_no_lock(worker, run):
    result = worker.send(tasks.long, run.id)
    task_id, pid = begun(run)
    assert locks.get(f"long:{run.id}").holder.pid == pid
    os.kill(pid, signal.SIGKILL)
    assert freed(run)
    assert type(outcome(result)).__name__ == "WorkerLostError"
    wait_until(lambda: worker.logged(task_id, "released in its stead"))


def test_a_hard_time_limit_leaves_no_lock(worker, run):
    result = worker.send(tasks.long, run.id, time_limit=1)
    begun(run)
    assert type(outcome(result)).__name__ == "TimeLimitExceeded"
    assert freed(run)


@pytest.mark.parametrize("by", ["SIGTERM", "SIGKILL"])
def test_a_revoked_task_that_is_terminated_leaves_no_lock(worker, run, by):
    result = worker.send(tasks.long, run.id)
    begun(run)
    result.revoke(terminate=True, signal=by)
    wait_until(result.ready)
    assert freed(run)
    assert result.state == "REVOKED"


def test_a_task_that_is_delivered_again_runs(worker, run):
    result = worker.send(tasks.stubborn, run.id)
    _, first = begun(run)
    os.kill(first, signal.SIGKILL)
    task_id, second = begun(run, times=2)
    assert task_id == result.id
    assert second != first
    run.go()
    assert outcome(result) == "ran"
    assert freed(run)


def test_a_task_that_is_delivered_again_does_not_give_way_to_one_that_came_between(worker, run):
    killed = worker.send(tasks.stubborn, run.id)
    _, pid = begun(run)
    os.kill(pid, signal.SIGKILL)
    with locks.lock(f"long:{run.id}", blocking_timeout=20):
        met = ("retry:", "AlreadyRunning")
        wait_until(lambda: len(worker.logged(killed.id, *met)) == 2, timeout=20)
    begun(run, times=2)
    run.go()
    assert outcome(killed) == "ran"
    assert run.notes("skipped") == []
    assert freed(run)


def test_who_waits_has_its_turn_and_keeps_it(worker, run):
    worker.send(tasks.long, run.id)
    _, pid = begun(run)
    waiter = worker.send(tasks.long_waiting, run.id)
    wait_until(lambda: locks.get(f"long:{run.id}").waiters == 1)
    os.kill(pid, signal.SIGKILL)
    task_id, _ = begun(run, times=2)
    assert task_id == waiter.id
    # The worker tells of the death first; a second release would be of another's lock.
    wait_until(lambda: worker.logged(f"long:{run.id}", "released in its stead"))
    assert locks.get(f"long:{run.id}").holder.task_id == waiter.id
    run.go()
    assert outcome(waiter) == "ran"
    assert freed(run)


def test_the_least_time_of_a_place_outlives_the_process(worker, run):
    worker.send(tasks.rare_and_long, run.id)
    _, pid = begun(run)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: locks.get(f"long:{run.id}").state == "cooldown", timeout=FREE_WITHIN)
    wait_until(lambda: locks.get(f"long:{run.id}") is None)
