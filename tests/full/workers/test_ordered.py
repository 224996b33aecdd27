"""Tasks of one lock run in the order in which they were sent, with real workers."""

import json
import subprocess
import sys
import time
from collections import defaultdict
from io import StringIO

import pytest
from celery import chain, chord, group
from celery.exceptions import TaskRevokedError
from django.core.management import call_command

from django_redislock import locks
from tests.celery_worker import MARKS, Worker, outcome
from tests.tools import ROOT, wait_until

from . import ordered_app as tasks

pytestmark = MARKS


class OrderedWorker(Worker):
    """A prefork worker with four pool processes."""

    def __init__(self, folder, **options):
        super().__init__(folder, app="tests.full.workers.ordered_app", **options)

    def wait_for_log(self, *texts):
        wait_until(lambda: self.logged(*texts), timeout=60)

    def wait_until_ready(self):
        outcome(self.send(tasks.ready), timeout=60)


@pytest.fixture
def start_worker(tmp_path):
    workers = []

    def start(**options):
        workers.append(OrderedWorker(tmp_path, **options))
        workers[-1].wait_until_ready()
        return workers[-1]

    yield start
    for worker in workers:
        worker.stop()


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    worker = OrderedWorker(tmp_path_factory.mktemp("ordered"))
    worker.wait_until_ready()
    yield worker
    worker.stop()


def begun(run):
    """Return the numbers of the tasks that began, for each customer."""
    found = defaultdict(list)
    for text in run.notes("begin"):
        _, customer, number, *_ = text.split()
        found[customer].append(int(number))
    return dict(found)


def go(run, *numbers):
    for number in numbers:
        run._notes.rpush(f"{run.id}:{number}:go", "go")


def lock_of(run, customer="a"):
    return f"ordered:{run.id}:{customer}"


def is_free(run, customer="a"):
    return wait_until(lambda: locks.get(lock_of(run, customer)) is None, timeout=10) or True


def send(worker, task, run, *numbers, customer="a", **options):
    return [worker.send(task, run.id, customer, number, **options) for number in numbers]


def test_a_limit_lets_two_run(worker, run):
    results = [worker.send(tasks.two, run.id, "a", number, 0.02) for number in range(20)]
    assert [outcome(each) for each in results] == [*range(20)]
    assert {text.split()[3] for text in run.notes("begin")} <= {"1", "2"}
    assert is_free(run)


@pytest.mark.parametrize("how", ["retried", "failing"])
def test_the_next_task_runs_after_any_end(worker, run, how):
    first, second = [
        *send(worker, getattr(tasks, how), run, 1),
        *send(worker, tasks.numbered, run, 2),
    ]
    assert outcome(second) == 2
    expected = [1, 1, 2] if how == "retried" else [1, 2]
    assert begun(run) == {"a": expected}
    assert first.state == ("SUCCESS" if how == "retried" else "FAILURE")
    assert is_free(run)


def test_a_revoked_task_does_not_run_and_the_next_one_does(worker, run):
    first, second, third = send(worker, tasks.waiting, run, 1, 2, 3)
    run.wait_for("begin")
    second.revoke()
    assert isinstance(outcome(second), TaskRevokedError)
    wait_until(lambda: [each.holder.task_id for each in locks.queue(lock_of(run))] == [third.id])
    worker.wait_for_log(second.id, "Discarding revoked task")  # before its turn
    go(run, 1, 3)
    assert [outcome(each) for each in (first, third)] == [1, 3]
    assert begun(run) == {"a": [1, 3]}
    assert is_free(run)


def test_an_expired_task_does_not_run_and_the_next_one_does(worker, run):
    [first] = send(worker, tasks.waiting, run, 1)
    [second] = send(worker, tasks.waiting, run, 2, expires=0.5)
    [third] = send(worker, tasks.waiting, run, 3)
    run.wait_for("begin")
    began = time.monotonic()
    wait_until(lambda: time.monotonic() > began + 0.6)
    go(run, 1, 3)
    assert isinstance(outcome(second), TaskRevokedError)
    assert [outcome(each) for each in (first, third)] == [1, 3]
    assert begun(run) == {"a": [1, 3]}


CANVAS = {
    "chain": lambda s: chain(s(1), s(2), s(3)),
    "group": lambda s: group(s(1), s(2), s(3)),
    "chord": lambda s: chord([s(1), s(2), s(3)]),
    "link": lambda s: s(1).set(link=s(2).set(link=s(3))),
}


@pytest.mark.parametrize("how", CANVAS)
def test_a_canvas_works_as_without_the_option(worker, run, how):
    def signature(number):
        return tasks.numbered.si(run.id, "a", number).set(queue=worker.queue)

    canvas = CANVAS[how](signature)
    to = {"queue": worker.queue}
    if how == "chord":
        result = canvas(tasks.collect.s().set(**to))
        assert outcome(result) == [1, 2, 3]
    else:
        result = canvas.apply_async(**to)
        run.wait_for("end", 3)
    assert begun(run) == {"a": [1, 2, 3]}
    assert is_free(run)


def test_a_killed_pool_process_passes_the_lock_on(worker, run):
    first, second = send(worker, tasks.waiting, run, 1, 2)
    [text] = run.wait_for("begin")
    worker.kill_child(int(text.split()[3]), first.id)
    worker.wait_for_log(first.id, "Lock released for dead process")
    run.wait_for("begin", 2)
    go(run, 2)
    assert outcome(second) == 2


SENDER = """
import sys
from tests.full.workers.ordered_app import numbered
run, queue, sender = sys.argv[1:]
for number in range(10):
    for customer in range(5):
        numbered.apply_async((run, f"{sender}-{customer}", number), queue=queue)
"""


def test_twenty_customers_and_four_senders(start_worker, run):
    one = start_worker()
    start_worker(queue=one.queue)
    command = [sys.executable, "-c", SENDER, run.id, one.queue]
    senders = [subprocess.Popen([*command, str(each)], cwd=ROOT) for each in range(4)]
    assert [sender.wait(60) for sender in senders] == [0] * 4
    wait_until(lambda: len(run.notes("end")) == 200, timeout=60)
    assert {text.split()[3] for text in run.notes("begin")} == {"1"}
    assert set(map(tuple, begun(run).values())) == {tuple(range(10))}
    assert len(begun(run)) == 20


def locks_command(*arguments):
    output = StringIO()
    call_command("locks", *arguments, stdout=output)
    return output.getvalue()


def test_the_command_shows_the_positions_and_releases_an_entry(worker, run):
    first, second, third = send(worker, tasks.waiting, run, 1, 2, 3)
    run.wait_for("begin")
    shown = locks_command("show", lock_of(run))
    assert "POSITION" in shown
    rows = [line.split() for line in shown.splitlines() if line[:1].isdigit()]
    found = [
        (row[0], task.id in " ".join(row))
        for row, task in zip(rows[1:3], [second, third], strict=True)
    ]
    assert found == [("1", True), ("2", True)]
    facts = json.loads(locks_command("show", lock_of(run), "--format", "json"))
    token = facts["queue"][0]["stored_token"]
    released = locks_command("release", lock_of(run), "--token", token, "--yes")
    assert second.id in released
    go(run, 1, 3)
    assert [outcome(each) for each in (first, third)] == [1, 3]
    assert begun(run) == {"a": [1, 3]}
