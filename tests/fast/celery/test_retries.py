"""For how long a lock is kept for a task that runs again later."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from celery.exceptions import Retry

from django_redislock import locks, single_instance

from .tools import run_message

QUEUED = 100
"""Seconds for which a queue lock lasts beyond the countdown of its task."""

DELAY = 500

INDIA = timezone(timedelta(hours=5, minutes=30))


def retries_itself(app, name, body, *, retries=0, **options):
    """Return whether a task sends itself again when a worker executes it."""
    alone = single_instance(key=name, hold_on_retry=True, queue_timeout=QUEUED)(body)
    task = app.task(bind=True, name=f"tests.{name}", **options)(alone)
    return run_message(app, task, retries=retries).type is Retry


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

    assert retries_itself(app, name, work)
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
    assert retries_itself(app, name, work, retries=3, **options)
    assert is_kept(name, delay)


def test_an_eta_that_cannot_be_read_does_not_hide_the_retry(app, name, caplog):
    def work(self):
        raise Retry(when="tomorrow")

    assert retries_itself(app, name, work)
    assert locks.get(name) is None
    assert "Cannot determine whether the task runs again" in caplog.text
