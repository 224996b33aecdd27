"""A pool process dies while its task holds a lock with a lease of one minute."""

import psutil
import pytest
from celery import Task

from django_redislock import locks
from tests import celery_app as tasks
from tests.celery_worker import FREE_WITHIN, MARKS, freed, outcome, running_worker
from tests.tools import wait_until

pytestmark = MARKS


def begun(run, times=1):
    """Wait for `times` executions, and return the task id and the pid of the last one."""
    _, task_id, pid = run.wait_for("begin", times)[-1].split()
    return task_id, int(pid)


@pytest.mark.skipif(
    not hasattr(Task, "retry_on_worker_lost"), reason="this Celery retries for no dead process"
)
def test_a_task_that_the_worker_retries_for_a_dead_process_runs(worker, run):
    result = worker.send(tasks.outliving, run.id)
    _, first = begun(run)
    worker.kill_child(first, result.id)
    task_id, second = begun(run, times=2)
    assert (task_id, second != first) == (result.id, True)
    run.go()
    assert outcome(result) == "ran"
    assert freed(f"long:{run.id}")


def test_a_waiter_acquires_the_lock_and_keeps_it(worker, run):
    worker.send(tasks.long, run.id)
    killed, pid = begun(run)
    waiter = worker.send(tasks.long_waiting, run.id)
    wait_until(lambda: locks.get(f"long:{run.id}").waiters == 1)
    worker.kill_child(pid, killed)
    task_id, _ = begun(run, times=2)
    assert task_id == waiter.id
    # The worker logs the release. A second one would release the lock of the waiter.
    wait_until(lambda: worker.logged(f"long:{run.id}", "Lock released for dead process"))
    assert locks.get(f"long:{run.id}").holder.task_id == waiter.id
    [event] = locks.history(f"long:{run.id}")
    assert (event.outcome, event.holder.task_id) == ("killed", killed)
    assert sum(locks.rates().counts["killed"]) >= 1
    run.go()
    assert outcome(waiter) == "ran"
    assert freed(f"long:{run.id}")


@pytest.fixture
def worker_of_two(tmp_path):
    with running_worker(tmp_path, concurrency=2) as worker:
        yield worker


def suspend(process):
    process.suspend()
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED)


def kill(process):
    process.kill()
    wait_until(lambda: process.status() == psutil.STATUS_ZOMBIE)


def is_free_of(run, process):
    info = locks.get(f"long:{run.id}")
    return info is None or info.holder.pid != process.pid


def test_a_process_that_dies_before_the_worker_heard_from_it_leaves_no_lock(
    worker_of_two, run, other_run
):
    # The worker sees the end of the first pool process. It then sees the end of the second one
    # before it hears that a task has begun there.
    worker, main = worker_of_two, psutil.Process(worker_of_two.process.pid)
    heard = worker.send(tasks.long, run.id)
    first = psutil.Process(begun(run)[1])
    wait_until(lambda: heard.id in worker.active())
    [second] = set(main.children()) - {first}
    suspend(second)
    unheard = worker.send(tasks.long, other_run.id)
    wait_until(lambda: worker.logged("received", unheard.id))
    for _ in range(10):  # give the worker's loop time to send the task to the second process
        assert unheard.id not in worker.active()
    suspend(main)
    kill(first)
    second.resume()
    other_run.wait_for("begin")
    kill(second)
    main.resume()
    wait_until(lambda: is_free_of(run, first), timeout=FREE_WITHIN)
    wait_until(lambda: is_free_of(other_run, second), timeout=FREE_WITHIN)
    other_run.go()  # because Celery may run it again
    assert outcome(unheard) == "ran" or unheard.state == "FAILURE"
    assert freed(f"long:{other_run.id}")
