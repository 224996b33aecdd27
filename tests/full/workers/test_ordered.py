"""Tasks of one lock run in the order in which they were sent, with real workers."""

import subprocess
import sys
import time
from collections import defaultdict

import pytest
from celery import chord
from celery.exceptions import TaskRevokedError

from django_redislock import locks
from tests.celery_worker import MARKS, outcome, running_worker
from tests.tools import ROOT, wait_until

from . import ordered_app as tasks

pytestmark = MARKS

APP = "tests.full.workers.ordered_app"


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    with running_worker(tmp_path_factory.mktemp("ordered"), app=APP) as worker:
        yield worker


def begun(run):
    """Return the numbers of the tasks that began, for each customer."""
    found = defaultdict(list)
    for text in run.notes("begin"):
        _, customer, number, *_ = text.split()
        found[customer].append(int(number))
    return dict(found)


def stored(run):
    return [each.holder.task_id for each in locks.queue(f"ordered:{run.id}:a")]


def wait_until_free(run):
    wait_until(lambda: locks.get(f"ordered:{run.id}:a") is None, timeout=10)


@pytest.mark.parametrize(
    ("task", "state", "expected"),
    [(tasks.retried, "SUCCESS", [1, 1, 2]), (tasks.failing, "FAILURE", [1, 2])],
)
def test_the_next_task_runs_after_any_end(worker, run, task, state, expected):
    first = worker.send(task, run.id, "a", 1)
    second = worker.send(tasks.numbered, run.id, "a", 2)
    assert outcome(second) == 2
    assert begun(run) == {"a": expected}
    assert first.state == state
    wait_until_free(run)


def test_revoked_and_expired_tasks_do_not_run_and_the_next_one_does(worker, run):
    def send(number, **options):
        return worker.send(tasks.waiting, run.id, "a", number, **options)

    first, revoked, expired, last = send(1), send(2), send(3, expires=0.5), send(4)
    expires_at = time.monotonic() + 0.5
    run.wait_for("begin")
    revoked.revoke()
    assert isinstance(outcome(revoked), TaskRevokedError)
    wait_until(lambda: worker.logged(revoked.id, "Discarding revoked task"))  # before its turn
    wait_until(lambda: stored(run) == [expired.id, last.id])
    wait_until(lambda: time.monotonic() > expires_at)
    for number in (1, 4):
        run._notes.rpush(f"{run.id}:{number}:go", "go")
    assert isinstance(outcome(expired), TaskRevokedError)
    assert [outcome(each) for each in (first, last)] == [1, 4]
    assert begun(run) == {"a": [1, 4]}
    wait_until_free(run)


def test_a_chord_works_as_without_the_option(worker, run):
    to = {"queue": worker.queue}
    members = [tasks.numbered.si(run.id, "a", number).set(**to) for number in range(3)]
    assert outcome(chord(members)(tasks.collect.s().set(**to))) == [0, 1, 2]
    assert begun(run) == {"a": [0, 1, 2]}
    wait_until_free(run)


SENDER = """
import sys
from tests.full.workers.ordered_app import numbered
run, queue, sender = sys.argv[1:]
for number in range(5):
    for customer in range(5):
        numbered.apply_async((run, f"{sender}-{customer}", number), queue=queue)
"""


def test_twenty_customers_and_four_senders(worker, tmp_path, run):
    command = [sys.executable, "-c", SENDER, run.id, worker.queue]
    with running_worker(tmp_path, app=APP, queue=worker.queue):
        senders = [subprocess.Popen([*command, str(each)], cwd=ROOT) for each in range(4)]
        assert [sender.wait(60) for sender in senders] == [0] * 4
        wait_until(lambda: len(run.notes("end")) == 100)
    assert {text.split()[3] for text in run.notes("begin")} == {"1"}
    assert set(map(tuple, begun(run).values())) == {tuple(range(5))}
    assert len(begun(run)) == 20
