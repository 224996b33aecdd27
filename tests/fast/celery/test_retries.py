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
    """Execute a task as a worker does, and assert that it sends itself again."""
    alone = single_instance(key=name, hold_on_retry=True, queue_timeout=QUEUED)(body)
    task = app.task(bind=True, name=f"tests.{name}", **options)(alone)
    assert run_message(app, task, retries=retries).type is Retry


def is_kept(name, delay):
    return abs(delay + QUEUED - locks.get(name).ttl) < 30


@pytest.mark.parametrize("kind", ["aware", "naive", "text"])
def test_an_eta_is_read_as_celery_reads_it(app, name, kind):
    app.conf.timezone = "Asia/Kolkata"
    eta = datetime.now(UTC) + timedelta(seconds=DELAY)
    eta = {
        "aware": eta.astimezone(INDIA),
        "naive": eta.replace(tzinfo=None),
        "text": eta.astimezone(INDIA).isoformat(),
    }[kind]

    def work(self):
        raise self.retry(eta=eta)

    retries_itself(app, name, work)
    assert is_kept(name, DELAY)


AUTOMATIC = [
    {"default_retry_delay": DELAY},
    {"retry_kwargs": {"countdown": DELAY}},
    {"retry_backoff": 500},
]


@pytest.mark.parametrize("options", AUTOMATIC, ids=str)
def test_an_automatic_retry_keeps_the_lock_for_its_delay(app, name, sent, options):
    def work(self):
        raise LookupError

    options = {"autoretry_for": (LookupError,), "max_retries": 5, **options}
    retries_itself(app, name, work, retries=3, **options)
    [message] = sent
    now = datetime.now(UTC)
    eta = datetime.fromisoformat(message["eta"]) if message["eta"] else now  # jitter can be 0
    assert is_kept(name, (eta - now).total_seconds())


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_retry_that_is_not_sent_or_has_no_valid_eta_keeps_no_lock(app, name, caplog, is_sent):
    def work(self):
        raise self.retry(eta="tomorrow") if is_sent else Retry(when=DELAY)

    retries_itself(app, name, work)
    assert locks.get(name) is None
    assert ("Cannot determine whether the task runs again" in caplog.text) is is_sent
