"""A task that took its place when it was sent, with a real worker."""

import pytest
from celery import chain, chord, group
from celery.exceptions import TaskRevokedError

from django_redislock import locks
from tests import celery_app as tasks
from tests.celery_worker import outcome
from tests.tools import wait_until

pytestmark = [
    pytest.mark.celery,
    # Celery 5.4 with redis-py 8, in a chord.
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]

WHEN_SENT = ["until_executing", "until_executed", "until_and_while_executing"]


@pytest.fixture(params=WHEN_SENT)
def mode(request):
    return request.param


def held(run):
    """Who has the lock, and who the place in the queue of `until_and_while_executing`."""
    infos = [locks.get(f"placed:{run.id}"), locks.get(f"placed:{run.id}:queued")]
    return [info and info.holder.task_id for info in infos]


def queued(run, mode):
    return held(run)[mode == "until_and_while_executing"]


def begun(run, times=1):
    return [text.split()[1] for text in run.wait_for("begin", times)]


@pytest.fixture(autouse=True)
def nothing_left(run):
    yield
    wait_until(lambda: held(run) == [None, None])


def test_one_after_the_other_until_it_begins(worker, run):
    task = tasks.placed["until_executing"]
    first = worker.send(task, run.id)
    begun(run)
    assert held(run) == [None, None]
    second = worker.send(task, run.id)
    assert begun(run, 2) == [first.id, second.id]
    run.go()
    run.go()
    assert (outcome(first), outcome(second)) == ("ran", "ran")


def test_one_at_a_time_until_it_has_ended(worker, run):
    task = tasks.placed["until_executed"]
    first = worker.send(task, run.id)
    begun(run)
    assert worker.send(task, run.id).id == first.id
    assert held(run) == [first.id, None]
    run.go()
    assert outcome(first) == "ran"
    wait_until(lambda: held(run) == [None, None])
    second = worker.send(task, run.id)
    run.go()
    assert outcome(second) == "ran"
    assert begun(run) == [first.id, second.id]


def test_one_runs_and_one_is_queued(worker, run):
    task = tasks.placed["until_and_while_executing"]
    first = worker.send(task, run.id)
    begun(run)
    second = worker.send(task, run.id)
    assert held(run) == [first.id, second.id]
    assert worker.send(task, run.id).id == second.id
    wait_until(lambda: worker.logged(second.id, "retry:"))
    assert held(run) == [first.id, second.id]
    run.go()
    assert begun(run, 2) == [first.id, second.id]
    assert held(run) == [second.id, None]
    run.go()
    assert (outcome(first), outcome(second)) == ("ran", "ran")


def test_what_is_revoked_while_it_waits_leaves_its_place_soon(worker, run, mode):
    result = worker.send(tasks.placed[mode], run.id, countdown=60)
    wait_until(lambda: worker.logged(result.id, "received"))
    assert queued(run, mode) == result.id
    result.revoke()
    wait_until(lambda: queued(run, mode) is None, timeout=3)


def test_what_is_revoked_before_it_came_leaves_its_place(worker, run, mode):
    worker.send(tasks.ready)
    task = tasks.placed[mode]
    task.app.control.revoke("to-be-revoked" + run.id)
    wait_until(lambda: worker.logged("to-be-revoked" + run.id, "flagged as revoked"))
    result = worker.send(task, run.id, task_id="to-be-revoked" + run.id)
    assert isinstance(outcome(result), TaskRevokedError)
    wait_until(lambda: queued(run, mode) is None)


def test_what_expires_leaves_its_place(worker, run, mode):
    result = worker.send(tasks.placed[mode], run.id, countdown=1.5, expires=1.2)
    assert queued(run, mode) == result.id
    assert isinstance(outcome(result), TaskRevokedError)
    assert run.notes("begin") == []


def test_a_newer_one_replaces_a_queued_one(worker, run, mode):
    first = worker.send(tasks.replacing[mode], run.id, countdown=2)
    second = worker.send(tasks.replacing[mode], run.id)
    assert isinstance(outcome(first), TaskRevokedError)
    assert run.notes("replaced") == [f"replaced {first.id} by {second.id}"]
    run.go()
    assert outcome(second) == "ran"
    assert begun(run) == [second.id]


def test_a_chord_of_duplicates_completes(worker, run):
    member = tasks.placed["until_executed"].s(run.id).set(queue=worker.queue)
    result = chord([member, member.clone()])(tasks.collect.s().set(queue=worker.queue))
    begun(run)
    run.go()
    assert sorted(outcome(result), key=str) == [None, "ran"]


def test_a_group_of_duplicates_completes(worker, run):
    member = tasks.placed["until_and_while_executing"].s(run.id).set(queue=worker.queue)
    result = group([member, member.clone(), member.clone()]).apply_async()
    for _ in result.results:
        run.go()
    ends = [outcome(each) for each in result.results]
    assert ends.count("ran") == len(run.notes("begin"))
    assert ends.count(None) == len(run.notes("skipped"))


def test_what_was_sent_by_its_name_is_skipped_as_it_begins(worker, run):
    task = tasks.placed["until_executed"]
    first = worker.send(task, run.id)
    begun(run)
    second = tasks.app.send_task(task.name, (run.id,), queue=worker.queue)
    assert outcome(second) is None
    assert run.notes("skipped") == [f"skipped {second.id} by {first.id}"]
    run.go()
    assert outcome(first) == "ran"


def test_what_goes_on_with_other_arguments_leaves_nothing_behind(worker, run):
    for _ in range(2):
        result = worker.send(tasks.paging, run.id, 1)
        assert outcome(result) == 3
        wait_until(lambda: not list(locks.active(f"page:{run.id}:*")))
    assert run.notes() == ["begin 1", "begin 2", "begin 3"] * 2


def test_a_chain_goes_on_where_another_task_by_the_same_key_goes_on(worker, run):
    links = tasks.giving_over.s(run.id), tasks.collect.s()
    result = chain(*(each.set(queue=worker.queue) for each in links)).apply_async()
    assert begun(run) == [result.parent.id]
    assert held(run) == [result.parent.id, None]
    run.go()
    assert outcome(result) == "ran"
    assert run.notes("skipped") == []


@pytest.mark.parametrize("value", [3e8, float("inf"), 1e18])
def test_a_forged_header_does_not_keep_the_lock(worker, run, value):
    task = tasks.placed["until_executed"]
    headers = {"redislock_sent_again": value}
    run.go()
    run.go()
    assert outcome(worker.send(task, run.id, headers=headers)) == "ran"
    wait_until(lambda: held(run) == [None, None])
    assert outcome(worker.send(task, run.id)) == "ran"
    assert len(run.notes("begin")) == 2


def test_the_history_has_a_task_that_runs_again_later_as_refused(worker, run):
    task = tasks.placed["until_and_while_executing"]
    first = worker.send(task, run.id)
    begun(run)
    second = worker.send(task, run.id)
    wait_until(lambda: worker.logged(second.id, "retry:"))
    run.go()
    run.go()
    assert (outcome(first), outcome(second)) == ("ran", "ran")
    events = [each for each in locks.history(f"placed:{run.id}") if each.acquired_at is None]
    assert {(each.outcome, each.holder.task_id) for each in events} == {("refused", second.id)}


def test_the_history_has_a_duplicate_as_skipped(worker, run):
    task = tasks.placed["until_executed"]
    first = worker.send(task, run.id)
    begun(run)
    worker.send(task, run.id)
    run.go()
    assert outcome(first) == "ran"
    events = [each for each in locks.history(f"placed:{run.id}") if each.acquired_at is None]
    assert [each.outcome for each in events] == ["skipped"]
