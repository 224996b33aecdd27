"""Every way in which a worker runs its tasks, and those without a worker."""

import time

import pytest

from django_redislock import AlreadyRunning, LockLost, locks
from tests.celery_app import placed
from tests.celery_worker import outcome, running_worker
from tests.tools import wait_until

from . import pool_app as tasks
from .test_never_two_at_once import ids_that_ran_one_after_the_other

pytestmark = [pytest.mark.celery]

SENT = 12

LEASES = 3
"""For how many leases a long task runs."""

ONE_AFTER_THE_OTHER = {"solo"}
"""The pools whose workers run one task at a time, so that it takes two to conflict."""

INTERRUPTED = {"prefork", "solo"}
"""The pools whose tasks run in the main thread of their process."""

ON_PURPOSE = ("raised unexpected", "lost lock", "was lost while it was held")
"""Errors in the logs that come of a task that fails, and of a lock that is taken away."""


@pytest.fixture(
    scope="module",
    params=[
        "prefork",
        "gevent",
        *(pytest.param(pool, marks=pytest.mark.slow) for pool in ("threads", "solo")),
    ],
)
def pool(request):
    return request.param


@pytest.fixture(scope="module")
def worker(pool, tmp_path_factory):
    folder = tmp_path_factory.mktemp(pool)
    options = {"app": "tests.full.workers.pool_app", "pool": pool}
    with running_worker(folder, **options) as worker:
        if pool not in ONE_AFTER_THE_OTHER:
            yield worker
            return
        with running_worker(folder, queue=worker.queue, **options):
            yield worker


def is_free(name):
    return locks.get(name) is None


def test_of_many_sends_no_two_run_at_once(worker, run):
    results = [worker.send(tasks.alone, run.id) for _ in range(SENT)]
    for result in results:
        outcome(result)
    ran = ids_that_ran_one_after_the_other(run.notes())
    skipped = [text.split()[1] for text in run.notes("skipped")]
    assert ran
    assert sorted(ran + skipped) == sorted(result.id for result in results)
    wait_until(lambda: is_free(f"pool:{run.id}"))


@pytest.mark.slow
def test_who_waits_runs_one_after_the_other(worker, run):
    results = [worker.send(tasks.queued, run.id) for _ in range(SENT)]
    assert {outcome(result) for result in results} == {"ran"}
    ran = ids_that_ran_one_after_the_other(run.notes())
    assert sorted(ran) == sorted(result.id for result in results)
    wait_until(lambda: is_free(f"pool:{run.id}"))


def test_who_meets_a_holder_is_skipped(worker, run, hold):
    hold(f"pool:{run.id}")
    result = worker.send(tasks.alone, run.id)
    assert outcome(result) is None
    assert result.state == "SUCCESS"
    assert run.notes() == [f"skipped {result.id} by None"]


def test_who_waits_is_given_its_turn(worker, run, hold):
    lock = hold(f"pool:{run.id}")
    result = worker.send(tasks.queued, run.id)
    wait_until(lambda: locks.get(f"pool:{run.id}").waiters == 1)
    lock.release()
    assert outcome(result) == "ran"


def test_who_retries_runs_when_the_lock_is_free(worker, run, hold):
    lock = hold(f"pool:{run.id}")
    result = worker.send(tasks.patient, run.id)
    wait_until(lambda: result.state == "RETRY")
    lock.release()
    assert outcome(result) == "ran"


def test_a_task_longer_than_its_lease_keeps_its_lock(worker, run):
    result = worker.send(tasks.leased, run.id)
    run.wait_for("begin")
    first = locks.get(f"pool:{run.id}")
    assert first.timeout == 1
    until = time.monotonic() + LEASES * first.timeout
    while time.monotonic() < until:
        assert locks.get(f"pool:{run.id}").fence_token == first.fence_token
        time.sleep(0.1)  # a pace, not a wait for something
    run.go()
    assert outcome(result) is False
    wait_until(lambda: is_free(f"pool:{run.id}"))


def test_the_holder_is_named(worker, run):
    result = worker.send(tasks.leased, run.id)
    run.wait_for("begin")
    holder = locks.get(f"pool:{run.id}").holder
    assert (holder.task_name, holder.task_id) == (tasks.leased.name, result.id)
    run.go()
    assert outcome(result) is False


def test_a_task_that_fails_frees_its_lock(worker, run):
    assert isinstance(outcome(worker.send(tasks.failing, run.id)), LookupError)
    wait_until(lambda: is_free(f"pool:{run.id}"), timeout=2)


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
    """The lines of the logs of all its workers that have all of `texts` in them."""
    lines = [line for log in worker.log.parent.iterdir() for line in log.read_text().splitlines()]
    return [line for line in lines if all(text in line for text in texts)]


def errors(worker):
    """What went wrong in its workers, but for what tests here have done on purpose."""
    lines = logged(worker, "ERROR")
    return [line for line in lines if not any(text in line for text in ON_PURPOSE)]


def test_what_is_revoked_while_it_waits_leaves_its_place_soon(worker, run, other_run):
    assert outcome(worker.send(tasks.alone, other_run.id)) == "ran"
    result = worker.send(placed["until_executed"], run.id, countdown=60)
    wait_until(lambda: logged(worker, result.id, "received"))
    assert locks.get(f"placed:{run.id}").holder.task_id == result.id
    result.revoke()
    wait_until(lambda: is_free(f"placed:{run.id}"), timeout=3)
    assert errors(worker) == []


class TestWithoutAWorker:
    """A direct call, `apply()` and `task_always_eager` lock, release and meet as well."""

    @pytest.fixture(
        params=[
            pytest.param(lambda task, *args: task(*args), id="call"),
            pytest.param(lambda task, *args: task.apply(args).get(), id="apply"),
            pytest.param(lambda task, *args: task.delay(*args).get(), id="eager"),
        ]
    )
    def do(self, request):
        tasks.app.conf.task_always_eager = True
        yield request.param
        tasks.app.conf.task_always_eager = False

    def test_it_locks_and_releases(self, do, run):
        run.go()
        assert do(tasks.leased, run.id) is False
        assert len(run.notes("begin")) == 1
        assert is_free(f"pool:{run.id}")

    def test_an_error_is_raised_and_the_lock_released(self, do, run):
        with pytest.raises(LookupError):
            do(tasks.failing, run.id)
        assert is_free(f"pool:{run.id}")

    def test_it_is_skipped(self, do, run, hold):
        hold(f"pool:{run.id}")
        assert do(tasks.alone, run.id) is None
        assert len(run.notes("skipped")) == 1

    def test_a_retry_has_no_queue_and_raises(self, do, run, hold):
        hold(f"pool:{run.id}")
        with pytest.raises(AlreadyRunning):
            do(tasks.patient, run.id)
