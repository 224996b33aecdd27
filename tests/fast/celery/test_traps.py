"""Mistakes that are reported: wrong arguments, and tasks that lose work."""

import pytest
from celery.exceptions import Retry

from django_redislock import single_instance
from django_redislock.celery.message import QUEUE_LOCK
from django_redislock.tasks.checks import check_names

from .tools import elsewhere, held_by, make_task, outcomes, run_message


def test_wrong_arguments_are_refused_while_a_duplicate_is_queued(app, name, sent):
    @single_instance(mode="until_executed", key=name)
    @app.task(name=f"tests.{name}")
    def task(a, b=1): ...

    task.delay(1)
    for wrong in ((), (1, 2, 3)):
        with pytest.raises(TypeError):
            task.delay(*wrong)
    assert len(sent) == 1


def other_task(app, name, **options):
    @single_instance(key=name, **options)
    @app.task(name=f"tests.{name}.other")
    def refund():
        return "refunded"

    return refund


@pytest.mark.parametrize("on_conflict", ["skip", "replace"])
def test_another_task_with_the_same_lock_is_no_duplicate(app, name, sent, signals, on_conflict):
    charge = make_task(app, name)
    refund = other_task(app, name, mode="until_executed", on_conflict=on_conflict)
    queued, refunded = charge.delay(), refund.delay()
    assert "skipped" not in outcomes(name, refunded.id)
    assert refunded.id != queued.id
    assert (held_by(name), signals) == ({name: queued.id}, [])
    headers = {QUEUE_LOCK: sent[1][QUEUE_LOCK]}
    assert run_message(app, refund, headers=headers, task_id=refunded.id).type is Retry
    assert run_message(app, charge, headers={QUEUE_LOCK: name}, task_id=queued.id) == "ran"
    assert run_message(app, refund, headers=headers, task_id=refunded.id) == "refunded"
    assert held_by(name) == {}


def test_only_a_duplicate_is_recorded_as_skipped_and_another_task_runs_later(
    app, name, sent, signals
):
    def body():
        elsewhere(lambda: run_message(app, refund, task_id="refund"))
        elsewhere(lambda: run_message(app, task, task_id="duplicate"))
        elsewhere(lambda: run_message(app, task, task_id="running", retries=1))

    refund = other_task(app, name)
    task = make_task(app, name, "while_executing", body=body)
    run_message(app, task, task_id="running")
    assert [each["id"] for each in sent] == ["refund", "running"]
    assert outcomes(name, "refund") == ["refused"]
    assert outcomes(name, "duplicate") == ["skipped"]
    assert "skipped" not in outcomes(name, "running")
    assert signals == [("skipped", "duplicate", "running")]


def test_a_queue_lock_is_released_although_its_name_cannot_be_made_any_more(app, name, sent):
    rows = [name]

    @single_instance(mode="until_executed", key=lambda: rows[0])
    @app.task(name=f"tests.{name}")
    def task(): ...

    task.delay()
    rows.clear()
    failure = run_message(app, task, headers=sent[0], task_id=sent[0]["id"])
    assert isinstance(failure.exception, IndexError)
    assert held_by(name) == {}


def test_calls_that_lose_work_are_reported_by_the_system_check(app):
    @app.task
    @single_instance
    def for_all(account, *, full=False): ...

    @app.task
    @single_instance(key="for-all")
    def on_purpose(account): ...

    [message] = [each for each in check_names() if f"{__name__}.test_calls_that" in each.msg]
    assert message.id == "redislock.W006"
    assert "for_all requires arguments (account)" in message.msg
