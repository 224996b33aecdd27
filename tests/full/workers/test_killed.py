"""Pool processes are killed at random moments while many tasks run."""

import os
import random
import threading
from collections import Counter
from contextlib import suppress

import psutil
import pytest

from django_redislock import locks
from tests.celery_worker import running_worker
from tests.lock_tools import start
from tests.tools import wait_until

from .pool_app import killed

pytestmark = [pytest.mark.celery, pytest.mark.timeout(1800)]

TASKS = int(os.environ.get("TESTS_KILLED_TASKS", "150"))

ACCOUNTS = 8


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
