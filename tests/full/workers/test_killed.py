"""Pool processes are killed at random moments while many tasks run."""

import os
import random
import subprocess
import threading
from collections import Counter
from contextlib import closing, suppress

import psutil
import pytest

from django_redislock import locks
from tests.celery_worker import FREE_WITHIN, UNSHARE, Run, running_worker
from tests.lock_tools import start
from tests.tools import wait_until

from .pool_app import killed, shared

pytestmark = [pytest.mark.celery, pytest.mark.timeout(1800)]

TASKS = int(os.environ.get("TESTS_KILLED_TASKS", "300"))

ACCOUNTS = 8

ROUNDS = int(os.environ.get("TESTS_NAMESPACE_ROUNDS", "6"))


def can_unshare():
    with suppress(FileNotFoundError):
        return subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode == 0
    return False


def kill_at_random(worker, run, is_over):
    """Kill pool processes at random intervals, and return the pids.

    On a busy machine, new processes would be killed before they are ready. So another task has to
    begin in between.
    """
    pids, begun = set(), 0
    while not is_over.wait(random.uniform(0.02, 0.3)):
        before, begun = begun, len(run.notes("begin"))
        if begun == before:
            continue
        with suppress(psutil.NoSuchProcess, IndexError):  # it has just ended, or there is none
            process = random.choice(worker.main.children())
            process.kill()
            pids.add(str(process.pid))
    return pids


def test_tasks_whose_processes_are_killed_run_one_at_a_time_and_none_is_lost(tmp_path, run):
    results, is_over = {}, threading.Event()
    options = {"app": "tests.full.workers.pool_app", "environment": {"TMPDIR": str(tmp_path)}}
    with running_worker(tmp_path, **options) as worker:
        pids = start(kill_at_random, worker, run, is_over)
        try:
            while len(results) < TASKS:
                account = random.randrange(ACCOUNTS)
                result = worker.send(random.choice(killed), run.id, account)
                results[result.id] = result  # a duplicate has the id of another task
            seconds = 60 + TASKS * 0.2
            wait_until(lambda: all(each.ready() for each in results.values()), timeout=seconds)
        finally:
            is_over.set()
        assert {result.get() for result in results.values()} == {"ran"}
        wait_until(lambda: not [*locks.active(f"{run.id}:*")], timeout=5)
    assert run.notes("overlap") == []
    begun = Counter()
    for _, task_id, pid in map(str.split, run.notes("begin")):
        begun[task_id] += pid not in pids.result()  # it may have ended without Celery's knowledge
    assert [task_id for task_id, count in begun.items() if count > 1] == []


@pytest.mark.skipif(not can_unshare(), reason="no permission for PID namespaces")
def test_only_the_lock_of_the_dead_process_of_two_with_equal_hosts_pids_and_tasks_is_released(
    tmp_path,
):
    options = {"app": "tests.full.workers.pool_app", "concurrency": 1, "namespace": True}
    rounds_with_equal_pids = 0
    with running_worker(tmp_path, **options) as one, running_worker(tmp_path, **options) as other:
        for number in range(ROUNDS):
            dying, living = (one, other) if number % 2 else (other, one)
            with closing(Run()) as run:
                living.send(shared, run.id, task_id=run.id)
                run.wait_for("begin")
                [living_holder] = holders(run)
                dying.send(shared, run.id, task_id=run.id)
                run.wait_for("begin", 2)
                rounds_with_equal_pids += len({holder.pid for holder in holders(run)}) == 1
                dying.main.children()[0].kill()
                wait_until(lambda run=run: len(holders(run)) == 1, timeout=FREE_WITHIN)
                assert holders(run) == [living_holder]
                run.go()
                assert run.wait_for("end") == ["end False"]
                wait_until(lambda run=run: not holders(run), timeout=FREE_WITHIN)
    assert rounds_with_equal_pids


def holders(run):
    info = locks.get(f"pool:{run.id}")
    return [holding.holder for holding in info.holders] if info else []
