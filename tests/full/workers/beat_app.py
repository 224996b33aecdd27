"""A job for two beats: `celery -A tests.full.workers.beat_app beat`.

`TESTS_BEAT_RUN` and `TESTS_BEAT_QUEUE` say whose it is and where it goes.
"""

import os
import time
from datetime import timedelta

from celery.schedules import schedstate, schedule
from django.dispatch import receiver

from django_redislock import single_instance
from django_redislock.signals import task_skipped
from tests.celery_app import app, note

INTERVAL = 5
"""Seconds between two ticks."""

SKEW = 2
"""By how many seconds the second beat's clock is ahead."""

KEEPS = INTERVAL / 2
"""Seconds for which a job keeps its place: longer than the skew, so that it meets the other
beat's message, and shorter than from one beat's message to the other's of the next tick."""


class Aligned(schedule):
    """Due whenever the clock shows a multiple of the interval, as a crontab is by the minute."""

    def is_due(self, last_run_at):
        now = self.maybe_make_aware(self.now()).timestamp()
        last = self.maybe_make_aware(last_run_at).timestamp()
        to_next = self.seconds - now % self.seconds
        return schedstate(now // self.seconds > last // self.seconds, to_next)


@app.task(bind=True)
@single_instance(key="tick:{run}", at_least_for=timedelta(seconds=KEEPS))
def tick(self, run):
    note(run, "ran", time.time())


@receiver(task_skipped)
def note_met(sender, args, **_):
    if getattr(sender, "name", None) == tick.name:
        note(*args, "met", time.time())


if run := os.environ.get("TESTS_BEAT_RUN"):
    app.conf.beat_schedule = {
        "tick": {
            "task": tick.name,
            "schedule": Aligned(INTERVAL),
            "args": [run],
            "options": {"queue": os.environ["TESTS_BEAT_QUEUE"]},
        },
    }
