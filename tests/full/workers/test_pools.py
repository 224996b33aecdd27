"""Exclusion and other guarantees of locks in each pool of Celery."""

import time

import pytest

from django_redislock import LockLost, locks
from tests.celery_app import queued
from tests.celery_worker import freed, outcome, running_worker
from tests.tools import wait_until

from . import pool_app as tasks

pytestmark = [pytest.mark.celery]

SENT = 12

LEASES = 3
"""Length of a long task, in leases."""

ONE_AFTER_THE_OTHER = {"solo"}
"""The pools that run one task at a time, so that a conflict needs two workers."""

INTERRUPTED = {"prefork", "solo"}
"""The pools whose tasks run in the main thread of their process."""


@pytest.fixture(scope="module", params=["prefork", "gevent", "threads", "solo"])
def pool(request):
    return request.param


@pytest.fixture(scope="module")
def worker(pool, tmp_path_factory):
    folder = tmp_path_factory.mktemp(pool)
    options = {"app": "tests.full.workers.pool_app", "pool": pool}
    if pool == "gevent":
        # Celery's Redis result backend may connect during a garbage collection. If gevent then
        # holds the lock of its thread pool and resolves the name there, the process deadlocks.
        options["environment"] = {"GEVENT_RESOLVER": "block"}
    with running_worker(folder, **options) as worker:
        if pool not in ONE_AFTER_THE_OTHER:
            yield worker
            return
        with running_worker(folder, queue=worker.queue, **options):
            yield worker


def test_tasks_that_wait_run_one_after_the_other(worker, run):
    results = [worker.send(tasks.waiting, run.id) for _ in range(SENT)]
    assert {outcome(result) for result in results} == {"ran"}
    moments = [text.split() for text in run.notes()]
    assert [word for word, _ in moments] == ["begin", "end"] * SENT
    begins, ends = ([task_id for _, task_id in moments[each::2]] for each in (0, 1))
    assert begins == ends
    assert sorted(begins) == sorted(result.id for result in results)
    assert freed(f"pool:{run.id}")


def test_a_task_longer_than_its_lease_keeps_its_lock(worker, run):
    result = worker.send(tasks.leased, run.id)
    run.wait_for("begin")
    first = locks.get(f"pool:{run.id}")
    assert first.timeout == 1
    assert (first.holder.task_name, first.holder.task_id) == (tasks.leased.name, result.id)
    until = time.monotonic() + LEASES * first.timeout
    while time.monotonic() < until:
        assert locks.get(f"pool:{run.id}").fence_token == first.fence_token
        time.sleep(0.1)  # limits the rate of the checks
    run.go()
    assert outcome(result) is False
    assert freed(f"pool:{run.id}")


def test_a_task_that_lost_its_lock_is_stopped_or_can_see_it(worker, pool, run):
    task = tasks.interrupted if pool in INTERRUPTED else tasks.watchful
    result = worker.send(task, run.id)
    run.wait_for("begin")
    assert locks.force_release(f"pool:{run.id}") == 1
    ended = outcome(result)
    if pool in INTERRUPTED:
        assert isinstance(ended, LockLost)
    else:
        assert ended == "saw it"
    assert worker.process.poll() is None


def logged(worker, *texts):
    """Return the lines in the logs of all workers of the pool that contain all of `texts`."""
    lines = [line for log in worker.log.parent.iterdir() for line in log.read_text().splitlines()]
    return [line for line in lines if all(text in line for text in texts)]


def test_a_task_that_is_revoked_while_it_waits_releases_its_queue_lock(worker, run):
    result = worker.send(queued["until_executed"], run.id, countdown=60)
    wait_until(lambda: logged(worker, result.id, "received"))
    assert locks.get(f"queued:{run.id}").holder.task_id == result.id
    result.revoke()
    assert freed(f"queued:{run.id}")
