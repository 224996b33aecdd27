"""Mistakes that are reported: wrong arguments, and tasks that lose work."""

import pytest
from celery import signature
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


def test_a_task_that_its_own_lock_refuses_is_reported_once(app, name, caplog):
    task = make_task(app, name, body=lambda: [task.delay().id for _ in range(2)])
    assert run_message(app, task, headers={QUEUE_LOCK: name}) == ["own", "own"]
    [text] = [text for text in caplog.messages if "its own lock" in text]
    assert f"task=tests.{name}" in text


def other_task(app, name, **options):
    @single_instance(key=name, **options)
    @app.task(name=f"tests.{name}.other")
    def refund():
        return "refunded"

    return refund


@pytest.mark.parametrize("on_conflict", ["skip", "replace"])
@pytest.mark.parametrize("needed", [{}, {"task_id": "chosen"}, {"link": signature("tests.next")}])
def test_another_task_with_the_same_lock_is_no_duplicate(
    app, name, sent, signals, on_conflict, needed
):
    charge = make_task(app, name)
    refund = other_task(app, name, mode="until_executed", on_conflict=on_conflict)
    queued = charge.delay()
    refunded = refund.apply_async(**needed)
    assert "skipped" not in outcomes(name, refunded.id)
    assert refunded.id != queued.id
    assert (held_by(name), signals) == ({name: queued.id}, [])
    headers = {QUEUE_LOCK: sent[1][QUEUE_LOCK]}
    assert run_message(app, refund, headers=headers, task_id=refunded.id).type is Retry
    assert run_message(app, charge, headers={QUEUE_LOCK: name}, task_id=queued.id) == "ran"
    assert run_message(app, refund, headers=headers, task_id=refunded.id) == "refunded"
    assert held_by(name) == {}


@pytest.mark.parametrize("options", [{}, {"limit": 1}])
def test_only_a_duplicate_is_recorded_as_skipped_and_another_task_runs_later(
    app, name, sent, signals, options
):
    def body():
        elsewhere(lambda: run_message(app, refund, task_id="refund"))
        elsewhere(lambda: run_message(app, task, task_id="duplicate"))
        elsewhere(lambda: run_message(app, task, task_id="running", retries=1))

    refund = other_task(app, name, **options)
    task = make_task(app, name, "while_executing", body=body, **options)
    run_message(app, task, task_id="running")
    assert [each["id"] for each in sent] == ["refund", "running"]
    assert outcomes(name, "refund") == ["refused"]
    assert outcomes(name, "duplicate") == ["skipped"]
    assert "skipped" not in outcomes(name, "running")
    assert signals == [("skipped", "duplicate", "running")]


def test_a_call_that_another_task_makes_skip_is_reported_once(app, name, caplog):
    refund = other_task(app, name)
    charge = make_task(app, name, body=lambda: elsewhere(lambda: refund.apply().get()))
    for _ in range(2):
        assert run_message(app, charge) is None
    [text] = [text for text in caplog.messages if "because of another task" in text]
    assert f"task=tests.{name}.other other=tests.{name}" in text


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

    @app.task(bind=True)
    @single_instance
    def without_arguments(self, full=False): ...

    @app.task
    @single_instance(key="for-all")
    def on_purpose(account): ...

    @app.task
    @single_instance(on_conflict="retry")
    def one_after_the_other(account): ...

    [message] = [each for each in check_names() if f"{__name__}.test_calls_that" in each.msg]
    assert message.id == "redislock.W006"
    assert "for_all requires arguments (account)" in message.msg
