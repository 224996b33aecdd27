"""Duplicates and conflicts with a real worker. `tests/fast/celery` has more of them."""

import pytest
from celery import chain
from celery.exceptions import TaskRevokedError

from django_redislock import AlreadyRunning, locks
from tests import celery_app as tasks
from tests.celery_worker import MARKS, outcome
from tests.tools import wait_until

pytestmark = MARKS


@pytest.fixture
def running(worker, run):
    """A task that holds the lock; `run.go()` ends it."""
    running = worker.send(tasks.long, run.id)
    run.wait_for("begin")
    yield running
    run.go()
    assert outcome(running) == "ran"
    wait_until(lambda: locks.get(f"long:{run.id}") is None)


def test_a_chain_continues_after_a_retry(worker, run, running):
    first = tasks.patient.s(run.id).set(queue=worker.queue)
    result = chain(first, tasks.collect.s().set(queue=worker.queue)).apply_async()
    wait_until(lambda: result.parent.state == "RETRY")
    assert isinstance(result.parent.result, AlreadyRunning)
    assert result.parent.result.task_id == running.id
    run.go()
    assert outcome(result) == 0
    run.go()


def test_a_soft_time_limit_ends_a_wait(worker, run, running):
    result = worker.send(tasks.impatient, run.id)
    assert "SoftTimeLimitExceeded" in repr(outcome(result))
    assert locks.get(f"long:{run.id}").waiters == 0


def test_a_retry_that_conflicts_with_its_own_first_execution_is_not_skipped(worker, run):
    result = worker.send(tasks.sends_itself_again, run.id)
    wait_until(lambda: worker.logged(result.id, "retry:", "AlreadyRunning"))
    run.go()
    run.wait_for("begin", 2)
    assert outcome(result) == "ran again"
    assert not run.notes("skipped")


def test_a_newer_task_replaces_a_queued_one(worker, run):
    first = worker.send(tasks.replacing, run.id, countdown=60)
    second = worker.send(tasks.replacing, run.id)
    assert isinstance(outcome(first), TaskRevokedError)
    assert run.notes("replaced") == [f"replaced {first.id} by {second.id}"]
    run.go()
    assert outcome(second) == "ran"
    assert [text.split()[1] for text in run.notes("begin")] == [second.id]
    wait_until(lambda: locks.get(f"queued:{run.id}") is None)
