"""What `single_instance` is for, with real workers: never two at once."""

import os
import signal
import threading

import pytest
from celery.result import AsyncResult

from django_redislock import AlreadyRunning, locks
from tests import celery_app as tasks
from tests.celery_worker import outcome
from tests.tools import wait_until

pytestmark = [pytest.mark.celery]

SENT = 20


def ids_that_ran_one_after_the_other(notes: list[str]) -> list[str]:
    """The ids of the runs, each of which ended before the next began."""
    moments = [text.split() for text in notes if text.startswith(("begin", "end"))]
    begins, ends = moments[::2], moments[1::2]
    assert [word for word, _ in moments] == ["begin", "end"] * len(ends), notes
    assert [task_id for _, task_id in begins] == [task_id for _, task_id in ends], notes
    return [task_id for _, task_id in begins]


def send_twenty(worker, run, task) -> dict[str, AsyncResult]:
    sent = [worker.send(task, run.id) for _ in range(SENT)]
    for result in sent:
        outcome(result, timeout=60)
    return {result.id: result for result in sent}


def test_of_twenty_sends_those_that_meet_a_running_one_are_skipped(worker, run):
    results = send_twenty(worker, run, tasks.skipping)
    ran = ids_that_ran_one_after_the_other(run.notes())
    skipped = [text.split()[1] for text in run.notes("skipped")]
    assert 1 <= len(ran) < SENT
    assert sorted(ran + skipped) == sorted(results)
    assert {results[task_id].result for task_id in ran} == {"ran"}
    assert {results[task_id].result for task_id in skipped} == {None}
    assert {result.state for result in results.values()} == {"SUCCESS"}


def test_of_twenty_sends_those_that_meet_a_running_one_are_told_so(worker, run):
    results = send_twenty(worker, run, tasks.raising)
    ran = ids_that_ran_one_after_the_other(run.notes())
    assert 1 <= len(ran) < SENT
    failed = [result for result in results.values() if result.id not in ran]
    assert {type(result.result) for result in failed} == {AlreadyRunning}


@pytest.mark.parametrize("task", [tasks.retrying, tasks.waiting], ids=["retry", "wait"])
def test_all_of_twenty_sends_run_one_after_the_other(worker, run, task):
    results = send_twenty(worker, run, task)
    assert sorted(ids_that_ran_one_after_the_other(run.notes())) == sorted(results)
    assert {result.result for result in results.values()} == {"ran"}


def test_a_task_four_times_as_long_as_its_lease_keeps_its_lock(worker, run):
    name = f"work:{run.id}"
    long = worker.send(tasks.skipping, run.id, 12)
    run.wait_for("begin")
    first, fences = locks.get(name), set()
    while not long.ready():
        outcome(worker.send(tasks.skipping, run.id))
        fences.add(found.fence_token if (found := locks.get(name)) else None)
        threading.Event().wait(0.5)  # a pace, not a wait for something
    assert fences <= {first.fence_token, None}
    assert first.timeout == 3
    ran = ids_that_ran_one_after_the_other(run.notes())
    assert ran[0] == long.id
    assert len(run.notes("skipped")) > 10
    assert long.result == "ran"


def test_a_task_whose_process_stood_still_is_told_that_its_lock_is_lost(worker, run):
    result = worker.send(tasks.stopped, run.id)
    _, pid, lost = run.wait_for("pid")[0].split()
    assert lost == "False"
    os.kill(int(pid), signal.SIGSTOP)
    try:
        # Its lease of 3 s is over, and another gets in.
        with locks.lock(f"place:{run.id}", blocking_timeout=5):
            threading.Event().wait(3)  # it stands still for twice its lease
    finally:
        os.kill(int(pid), signal.SIGCONT)
    run.go()
    assert outcome(result) is True
    wait_until(lambda: worker.logged("lost lock", run.id, result.id), timeout=5)
