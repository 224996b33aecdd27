"""What becomes of a task that meets a running one, with a real worker."""

import pytest
from celery import chain, chord

from django_redislock import AlreadyRunning, locks
from django_redislock.celery.message import CONFLICTS
from tests import celery_app as tasks
from tests.celery_worker import outcome
from tests.tools import wait_until

pytestmark = [
    pytest.mark.celery,
    # Celery 5.4 with redis-py 8, in a chord.
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]


@pytest.fixture
def place(worker, run):
    """A worker whose tasks meet a running one; `run.go()` ends it."""
    place = worker.send(tasks.holder, run.id)
    run.wait_for("begin")
    yield place
    run.go()
    assert outcome(place) == "held"
    wait_until(lambda: locks.get(f"place:{run.id}") is None)


def test_the_lock_is_named_after_task_and_arguments_and_says_who_holds_it(worker, run):
    result = worker.send(tasks.held, run.id)
    run.wait_for("begin")
    info = locks.get(f'tests.celery_app.held:run="{run.id}"')
    run.go()
    assert info.holder.task_id == result.id
    assert info.holder.task_name == "tests.celery_app.held"
    assert info.timeout == 5
    assert outcome(result) == "ran"
    wait_until(lambda: locks.get(info.name) is None)


def test_skipped_it_completes_and_leaves_a_warning_and_a_signal(worker, run, place):
    result = worker.send(tasks.skipped, run.id)
    assert outcome(result) is None
    assert result.state == "SUCCESS"
    assert run.notes("skipped") == [f"skipped {result.id} by {place.id}"]
    told = ("skipped", "WARNING", f"place:{run.id}", result.id, place.id)
    assert len(wait_until(lambda: worker.logged(*told))) == 1


def test_refused_it_fails_with_the_holder(worker, run, place):
    error = outcome(worker.send(tasks.refused, run.id))
    assert isinstance(error, AlreadyRunning)
    assert (error.name, error.task_id) == (f"place:{run.id}", place.id)
    assert 0 < error.expires_in <= 5


def test_it_waits_no_longer_than_it_may(worker, run, place):
    error = outcome(worker.send(tasks.short_of_time, run.id))
    assert isinstance(error, AlreadyRunning)


def test_a_retry_runs_later_with_its_own_retries_untouched(worker, run, place):
    result = worker.send(tasks.patient, run.id, headers={"tenant": "blue"})
    wait_until(lambda: result.state == "RETRY")
    assert isinstance(result.result, AlreadyRunning)
    assert result.result.task_id == place.id
    run.go()
    ran = outcome(result)
    assert ran["id"] == result.id
    assert ran["retries"] == 0
    assert ran["headers"]["tenant"] == "blue"
    assert ran["headers"][CONFLICTS] >= 1
    run.go()


def test_retries_that_are_used_up_end_in_the_error(worker, run, place):
    result = worker.send(tasks.impatient, run.id)
    assert isinstance(outcome(result), AlreadyRunning)
    wait_until(lambda: worker.logged(result.id, "raised unexpected"))
    assert len(worker.logged(result.id, "retry:")) == 2


def test_a_retry_that_can_not_be_sent_is_an_error(worker, run, place):
    result = worker.send(tasks.unsendable, run.id)
    error = outcome(result)
    assert result.state == "FAILURE"
    assert "no broker" in str(error)


def test_a_retry_that_can_not_be_sent_leaves_a_late_message_in_the_queue(worker, run, place):
    result = worker.send(tasks.unsendable_late, run.id)
    run.wait_for("unsent")
    run.go()
    assert outcome(result) == "ran"
    run.go()


def test_a_soft_time_limit_ends_a_wait(worker, run, place):
    result = worker.send(tasks.impatient_to_wait, run.id)
    assert "SoftTimeLimitExceeded" in repr(outcome(result))
    assert locks.get(f"place:{run.id}").waiters == 0


def test_a_chain_goes_on_after_a_retry(worker, run, place):
    first = tasks.patient.s(run.id).set(queue=worker.queue)
    result = chain(first, tasks.collect.s().set(queue=worker.queue)).apply_async()
    wait_until(lambda: result.parent.state == "RETRY")
    run.go()
    assert outcome(result)["id"] == result.parent.id
    run.go()


def test_a_chord_with_a_skipped_member_completes(worker, run, place):
    header = [tasks.skipped.s(run.id), tasks.ready.s()]
    members = [member.set(queue=worker.queue) for member in header]
    result = chord(members)(tasks.collect.s().set(queue=worker.queue))
    skipped, pid = outcome(result)
    assert skipped is None
    assert isinstance(pid, int)


def test_a_chord_with_a_retried_member_completes(worker, run, place):
    members = [tasks.patient.s(run.id).set(queue=worker.queue)]
    result = chord(members)(tasks.collect.s().set(queue=worker.queue))
    wait_until(lambda: worker.logged(result.parent.results[0].id, "retry:"))
    run.go()
    assert [member["retries"] for member in outcome(result)] == [0]
    run.go()


def test_its_own_retry_gives_the_lock_back(worker, run):
    result = worker.send(tasks.retries_itself, run.id)
    assert outcome(result) == 2
    assert len(run.notes("begin")) == 3
    assert not run.notes("skipped")


def test_a_task_that_meets_its_own_past_is_not_skipped_but_runs_later(worker, run):
    result = worker.send(tasks.sends_itself_again, run.id)
    wait_until(lambda: worker.logged(result.id, "retry:", "AlreadyRunning"))
    run.go()
    run.wait_for("begin", 2)
    assert outcome(result) == "ran again"
    assert not run.notes("skipped")


def test_what_a_task_sent_in_its_own_stead_is_no_duplicate_of_it(worker, run):
    result = worker.send(tasks.sends_itself_again_and_returns, run.id)
    wait_until(lambda: worker.logged(result.id, "retry:", "AlreadyRunning"))
    run.go()
    assert run.wait_for("begin", 2) == ["begin 0", "begin 1"]
    wait_until(lambda: worker.logged(result.id, "succeeded", ": 1"))


def test_an_automatic_retry_gives_the_lock_back_and_keeps_its_name(worker, run):
    assert outcome(worker.send(tasks.retried_for_errors, run.id)) == "ran"
    name = f'tests.celery_app.retried_for_errors:run="{run.id}"'
    assert run.notes() == [f"lock {name}"] * 3


def test_a_soft_time_limit_gives_the_lock_back(worker, run):
    result = worker.send(tasks.overtaxed, run.id)
    outcome(result)
    assert result.state == "FAILURE"
    assert run.notes() == ["limit"]
    assert locks.get(f'tests.celery_app.overtaxed:run="{run.id}"') is None


def test_as_many_run_as_the_limit_allows(worker, run):
    first, second = (worker.send(tasks.few, run.id) for _ in range(2))
    wait_until(lambda: len(run.notes("begin")) == 2)
    info = locks.get(f"few:{run.id}")
    assert (info.kind, info.capacity) == ("semaphore", 2)
    assert {each.holder.task_id for each in info.holders} == {first.id, second.id}
    third = worker.send(tasks.few, run.id)
    assert outcome(third) is None
    [skipped] = run.notes("skipped")
    assert skipped in {f"skipped {third.id} by {each.id}" for each in (first, second)}
    run.go()
    run.go()
    assert (outcome(first), outcome(second)) == ("ran", "ran")
    wait_until(lambda: locks.get(info.name) is None)


def test_what_keeps_its_place_for_a_while_is_not_run_again_meanwhile(worker, run):
    assert outcome(worker.send(tasks.rare, run.id)) == "ran"
    assert locks.get(f"rare:{run.id}").state == "cooldown"
    assert outcome(worker.send(tasks.rare, run.id)) is None
    wait_until(lambda: locks.get(f"rare:{run.id}") is None)
    assert outcome(worker.send(tasks.rare, run.id)) == "ran"
    wait_until(lambda: locks.get(f"rare:{run.id}") is None)
