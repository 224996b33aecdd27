"""For how long a lock is kept for a task that runs again later."""

import uuid
from datetime import UTC, datetime, timedelta, timezone

import pytest
from celery.app.trace import build_tracer
from celery.exceptions import Retry

from django_redislock import locks, single_instance

QUEUED = 100
"""Seconds for which a queue lock lasts beyond the countdown of its task."""

DELAY = 500

INDIA = timezone(timedelta(hours=5, minutes=30))


def state_of(app, name, body, *, retries=0, **options):
    """Return the state of a task that was retried before, after a worker has executed it."""
    alone = single_instance(key=name, hold_on_retry=True, queue_timeout=QUEUED)(body)
    app.task(bind=True, shared=False, name=f"tests.{name}", **options)(alone)
    task, task_id = app.tasks[f"tests.{name}"], uuid.uuid4().hex
    request = {"id": task_id, "retries": retries, "is_eager": False, "delivery_info": {}}
    build_tracer(task.name, task, app=app)(task_id, (), {}, request)
    return task.AsyncResult(task_id).state


def is_kept(name, delay):
    return 0 <= delay + QUEUED - locks.get(name).ttl < 30


@pytest.mark.parametrize("zone", [None, "Asia/Kolkata"])
@pytest.mark.parametrize("kind", ["aware", "naive", "text"])
def test_an_eta_is_read_as_celery_reads_it(app, name, zone, kind):
    app.conf.timezone = zone
    eta = datetime.now(UTC) + timedelta(seconds=DELAY)
    eta = {
        "aware": eta.astimezone(INDIA),
        "naive": eta.replace(tzinfo=None),
        "text": eta.astimezone(INDIA).isoformat(),
    }[kind]

    def work(self):
        raise self.retry(eta=eta)

    assert state_of(app, name, work) == "RETRY"
    assert is_kept(name, DELAY)


@pytest.mark.parametrize(
    ("options", "delay"),
    [
        ({}, 180),
        ({"default_retry_delay": DELAY}, DELAY),
        ({"retry_kwargs": {"countdown": DELAY}}, DELAY),
        ({"retry_kwargs": {"countdown": 0}}, 0),
        ({"retry_backoff": 5}, 5 * 2**3),
        ({"retry_backoff": True, "retry_backoff_max": 6, "retry_kwargs": {"countdown": 1}}, 6),
    ],
    ids=str,
)
def test_an_automatic_retry_keeps_the_lock_for_the_longest_delay(app, name, options, delay):
    def work(self):
        raise LookupError

    options = {"autoretry_for": (LookupError,), "max_retries": 5, **options}
    assert state_of(app, name, work, retries=3, **options) == "RETRY"
    assert is_kept(name, delay)


def test_an_eta_that_cannot_be_read_does_not_hide_the_retry(app, name, caplog):
    def work(self):
        raise Retry(when="tomorrow")

    assert state_of(app, name, work) == "RETRY"
    assert locks.get(name) is None
    assert "Cannot determine whether the task runs again" in caplog.text
