"""Three beats as processes, with a schedule in the database that changes while leaders are
killed."""

import json
from itertools import count

import pytest

from tests.tools import Child

from .test_beats import assess, kill_leaders, running

pytestmark = pytest.mark.timeout(400)

EDITOR = """
import json
from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask

def every(seconds):
    found, _ = IntervalSchedule.objects.get_or_create(every=seconds, period="seconds")
    return found

def add(name, task, **options):
    PeriodicTask.objects.create(name=name, task=f"beats.{task}", **options)

minutely, _ = CrontabSchedule.objects.get_or_create(minute="*", hour="*")
PeriodicTask.objects.all().delete()
add("every second", "second", interval=every(1))
add("every five seconds", "five", interval=every(5))
add("every minute", "minute", crontab=minutely)
say("ready")
while line := hear():
    what, name = line.split()
    if what == "add":
        add(name, name, interval=every(1))
    elif what == "change":
        task = PeriodicTask.objects.get(name=name)
        task.interval = every(2)
        task.save()
    elif what == "once":
        add(name, name, interval=every(1), one_off=True)
    elif what == "delete":
        PeriodicTask.objects.filter(name=name).delete()
    say("done")
say(json.dumps(list(PeriodicTask.objects.filter(enabled=True).values_list("name", flat=True))))
hear()
"""
"""A process that changes the schedule: another one than the beats, as in production."""


@pytest.fixture
def environment(request, using):
    """The environment of a process whose default database is the one of `using`."""
    entry = request.getfixturevalue(f"{using}_database")
    if using == "sqlite":
        # A transaction that reads first, and then writes, would fail while another one writes.
        entry = entry | {"OPTIONS": entry["OPTIONS"] | {"transaction_mode": "IMMEDIATE"}}
    return {"TESTS_DATABASES": json.dumps({"default": entry})}


def test_each_tick_is_sent_once_although_the_schedule_changes(tmp_path, environment):
    numbers = count()
    once = []

    def edit(line):
        editor.tell(line)
        editor.expect("done")

    def change_something():
        number = next(numbers)
        edit(f"add extra{number}")
        edit(f"once once{number}")
        once.append(f"beats.once{number}")
        if number:
            edit(f"change extra{number - 1}")
        if number > 1:
            edit(f"delete extra{number - 2}")

    with (
        Child(EDITOR, **environment) as editor,
        running(tmp_path, "DatabaseScheduler", **environment) as beats,
    ):
        editor.expect("ready")
        kill_leaders(beats, between=change_something)
        assess(beats)
        # Each one-off task was sent, and not again with another task id.
        for task in once:
            assert len(set(beats.sent(task))) == 1, task
        editor.tell()
        assert not [name for name in json.loads(editor.expect("")) if name.startswith("once")]
