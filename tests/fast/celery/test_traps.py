"""Mistakes that are reported: wrong arguments, and tasks that lose work."""

import pytest

from django_redislock import single_instance
from django_redislock.celery.message import QUEUE_LOCK
from django_redislock.tasks.checks import check_names

from .tools import WHEN_SENT, held_by, make_task, run_message


@pytest.mark.parametrize("mode", WHEN_SENT)
@pytest.mark.parametrize("typing", [True, False])
def test_wrong_arguments_are_refused_while_a_duplicate_is_queued(app, name, sent, mode, typing):
    @single_instance(mode=mode, key=name)
    @app.task(name=f"tests.{name}", typing=typing)
    def task(a, b=1): ...

    task.delay(1)
    if typing:
        for wrong in ((), (1, 2, 3)):
            with pytest.raises(TypeError):
                task.delay(*wrong)
    else:
        task.delay(1, 2, 3)
    assert len(sent) == 1


def test_a_task_that_its_own_lock_refuses_is_reported_once(app, name, caplog):
    @single_instance(mode="until_executed", key=name)
    @app.task(bind=True, name=f"tests.{name}")
    def task(self):
        return [task.delay().id for _ in range(2)]

    headers = {QUEUE_LOCK: name}
    assert run_message(app, task, headers=headers) == ["own", "own"]
    [text] = [text for text in caplog.messages if "its own lock" in text]
    assert f"task=tests.{name}" in text


def test_a_task_that_another_task_makes_skip_is_reported_once(app, name, caplog):
    charge = make_task(app, name)

    @single_instance(mode="until_executed", key=name)
    @app.task(name=f"tests.{name}.other")
    def refund(): ...

    queued = charge.delay()
    assert [refund.delay().id for _ in range(2)] == [queued.id] * 2
    [text] = [text for text in caplog.messages if "because of another task" in text]
    assert f"task=tests.{name}.other other=tests.{name}" in text


def test_a_name_that_cannot_be_made_any_more_is_no_error_if_the_queue_lock_is_known(
    app, name, sent, caplog
):
    rows = [name]

    @single_instance(mode="until_executed", key=lambda: rows[0])
    @app.task(name=f"tests.{name}")
    def task(): ...

    task.delay()
    assert held_by(name)
    rows.clear()
    failure = run_message(app, task, headers=sent[0], task_id=sent[0]["id"])
    assert isinstance(failure.exception, IndexError)
    assert held_by(name) == {}
    assert "Queue lock not released" not in caplog.text


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

    @app.task
    @single_instance(limit=2)
    def two_at_a_time(account): ...

    [message] = [each for each in check_names() if f"{__name__}.test_calls_that" in each.msg]
    assert message.id == "redislock.W006"
    assert "for_all requires arguments (account)" in message.msg
