"""What happens to one message leaves the next one with the same lock, id or process alone."""

import time

import pytest
from celery import Task
from celery.exceptions import Ignore, Retry

from django_redislock import locks
from django_redislock.celery.worker import managers_with_stored

from .test_ended import store
from .test_ordered import ORDERED, delivered, end
from .tools import elsewhere, make_task, own_app, queue_lock, run_message


@pytest.fixture(autouse=True)
def no_messages_of_other_tests(app):
    """All apps in memory share their broker."""
    delivered(app)
    yield
    delivered(app)


def test_an_ignored_execution_keeps_the_queue_lock_of_a_message_with_its_id(app, name, sent):
    mode = "until_executing"

    def body():
        elsewhere(lambda: task.apply_async(task_id=name))
        raise Ignore

    task = make_task(app, name, mode, body=body)
    task.apply_async(task_id=name)
    run_message(app, task, headers=sent[0], task_id=name)
    assert len(sent) == 2
    assert queue_lock(name, mode).holder.task_id == name


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


def test_a_worker_sends_stored_messages_of_its_own_app(app, name):
    make_task(app, name, **ORDERED)
    with own_app("tests.other") as other:
        make_task(other, f"{name}-other")
        assert managers_with_stored(other) == []
    assert [each.alias for each in managers_with_stored(app)] == [locks.alias]
