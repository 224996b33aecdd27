"""What happens to one message leaves the next one with the same lock, id or process alone."""

import threading
import time

import pytest
from celery import Task
from celery.exceptions import Ignore, Retry

from django_redislock import locks, single_instance
from django_redislock.celery.worker import managers_with_stored
from django_redislock.tasks.checks import required_parameters

from .test_ended import store
from .test_ordered import ORDERED, delivered, end
from .tools import WHEN_SENT, elsewhere, held_by, make_task, own_app, queue_lock, run_message


@pytest.fixture(autouse=True)
def no_messages_of_other_tests(app):
    """All apps in memory share their broker."""
    delivered(app)
    yield
    delivered(app)


@pytest.mark.parametrize("mode", ["until_executing", "until_and_while_executing"])
def test_an_ignored_execution_keeps_the_queue_lock_of_a_message_with_its_id(app, name, sent, mode):
    def body():
        elsewhere(lambda: task.apply_async(task_id=name))
        raise Ignore

    task = make_task(app, name, mode, body=body)
    task.apply_async(task_id=name)
    run_message(app, task, headers=sent[0], task_id=name)
    assert len(sent) == 2
    assert queue_lock(name, mode).holder.task_id == name


@pytest.mark.parametrize("options", [{}, ORDERED])
def test_a_system_without_a_free_thread_does_not_ask(app, name, sent, monkeypatch, options):
    def start(thread):
        raise RuntimeError("can't start new thread")

    task = make_task(app, name, **options)
    first = task.delay()
    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", start)
        second = task.delay()
    assert (second.id == first.id) is not bool(options)
    assert [each.holder.task_id for each in locks.queue(name)] == [second.id][: bool(options)]
    for waiter in locks.queue(name):
        locks.force_release(name, waiter.stored_token)


def test_a_waiting_task_goes_by_its_own_limit(app, name):
    limits, is_first = [3, 1], [True, False]

    @app.task(name=f"tests.{name}", bind=True)
    @single_instance(
        key=lambda *args: name,
        on_conflict="wait",
        blocking_timeout=1,
        hold_on_retry=True,
        limit=lambda *args: limits[0],
    )
    def work(self):
        if is_first[0]:
            raise self.retry(countdown=60)

    run_message(app, work, task_id=f"{name}-queued")
    limits.pop(0)
    is_first.pop(0)
    assert run_message(app, work, task_id=f"{name}-other").type is Retry


def test_with_a_limit_each_task_that_has_ended_can_be_sent_again(app, name, sent):
    task = make_task(app, name, limit=2)
    first, second = ids = f"{name}-1", f"{name}-2"
    for task_id in ids:
        task.apply_async(task_id=task_id)
        time.sleep(0.01)  # a result of the same millisecond can belong to an earlier message
        store(app, task_id, "FAILURE")
    for task_id in (second, first):
        task.apply_async(task_id=task_id)
    assert [each["id"] for each in sent] == [first, second, second, first]
    assert held_by(name)


def test_a_retry_that_is_sent_before_the_body_keeps_its_queue_lock(app, name, sent):
    class Early(Task):
        def before_start(self, *args):
            raise self.retry(countdown=60)

    task = make_task(app, name, task={"base": Early})
    first = task.delay()
    assert run_message(app, task, headers=sent[0], task_id=first.id).type is Retry
    assert len(sent) == 2
    assert queue_lock(name).holder.task_id == first.id


def test_the_result_of_an_earlier_message_with_the_same_id_does_not_count(app, name):
    ran = []
    task = make_task(app, name, body=lambda: ran.append(1), **ORDERED)
    store(app, f"{name}-daily", "SUCCESS")
    time.sleep(0.01)
    task.apply_async(task_id=f"{name}-daily")
    [message] = delivered(app)
    locks.force_release(name)  # so that it could be a second copy
    end(app, task, message)
    assert ran == [1]


@pytest.mark.parametrize("mode", WHEN_SENT)
def test_a_task_that_cannot_begin_makes_room_for_the_next(app, name, sent, mode):
    names = [name]

    def work(): ...

    made = app.task(name=f"tests.{name}")(work)
    task = single_instance(mode=mode, key=lambda: names[0])(made)
    result = task.delay()
    names[0] = ""
    error = run_message(app, task, headers=sent[0], task_id=result.id)
    assert isinstance(getattr(error, "exception", error), ValueError)
    assert queue_lock(name, mode) is None


def test_a_worker_sends_stored_messages_of_its_own_app(app, name):
    make_task(app, name, **ORDERED)
    with own_app("tests.other") as other:
        make_task(other, f"{name}-other")
        assert managers_with_stored(other) == []
    assert [each.alias for each in managers_with_stored(app)] == [locks.alias]


def test_only_a_first_parameter_can_be_filled_by_the_framework():
    def work(self, task, account=None): ...

    single = single_instance()(work).__dict__["django_redislock_single_instance"]
    assert required_parameters(single) == ["task"]
