"""Several beats of the schedule that django-celery-beat has in the database."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import OperationalError, connection
from django.utils import timezone
from django_celery_beat.models import (
    IntervalSchedule,
    PeriodicTask,
)

from django_redislock.celery import beat as beat_module
from django_redislock.celery.beat import DatabaseScheduler
from django_redislock.celery.last_runs import Run

from .beats import (
    HOUR,
    ago,
    kill,
    lose_record,
    make_app,
    names,
    read_record,
    ticks,
)
from .beats import write_record as write_record_of_rows

# django-celery-beat closes its connections, so no transaction can be around a test.
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def beat(make_beat):
    """Return a function that makes a beat of the schedule in the database."""

    def make(**conf):
        schedule = conf.pop("beat_schedule", None)
        return make_beat(DatabaseScheduler, app=make_app(schedule, **conf))

    return make


def interval(seconds=HOUR):
    every, _ = IntervalSchedule.objects.get_or_create(
        every=seconds, period=IntervalSchedule.SECONDS
    )
    return {"interval": every}


def add(name="entry", **fields):
    fields = fields or interval()
    return PeriodicTask.objects.create(name=name, task=f"shop.{name}", **fields)


def write_record(**runs):
    """Record last runs of the tasks that now have these names."""
    rows = dict(PeriodicTask.objects.values_list("name", "pk"))
    changes = {}
    for name, run in runs.items():
        each = run if isinstance(run, Run) else Run(run, 1)
        changes[name] = replace(each, row=str(rows[name]))
    write_record_of_rows(**changes)


def test_the_database_counts_only_without_a_record(beat, sent, redis_server):
    task = add()
    PeriodicTask.objects.filter(pk=task.pk).update(last_run_at=ago(5 * HOUR), total_run_count=3)
    write_record(entry=Run(ago(HOUR / 2), 7))
    first = beat()
    ticks(first)
    assert sent == []
    assert first.schedule["entry"].total_run_count == 7
    lose_record(redis_server)
    second = beat()
    kill(first)
    ticks(second)
    assert names(sent) == ["shop.entry"]
    assert read_record(redis_server)["entry"].count == 4


@pytest.mark.parametrize("is_deposed", [False, True])
def test_only_a_leader_writes_the_database_when_it_is_closed(beat, is_deposed):
    task = add()
    write_record(entry=Run(ago(5 * HOUR), 7))
    leader = beat()
    ticks(leader)
    leader.apply_async(leader.schedule["entry"])
    if is_deposed:
        kill(leader)
    leader.close()
    task.refresh_from_db()
    assert task.total_run_count == (8 if is_deposed else 9)
    assert timezone.now() - task.last_run_at < timedelta(minutes=1)


def test_the_leader_notices_entries_that_are_added_and_changed(beat, sent):
    task = add()
    write_record(entry=ago(HOUR / 2))
    leader = beat()
    ticks(leader)
    assert sent == []
    add("other", **interval(60))
    PeriodicTask.objects.filter(name="other").update(last_run_at=ago(HOUR))
    task.interval = interval(60)["interval"]
    task.args = json.dumps([7])
    task.save()
    ticks(leader)
    assert sorted(names(sent)) == ["shop.entry", "shop.other"]


def test_a_one_off_task_is_sent_once_and_then_disabled(beat, sent):
    task = add(one_off=True, **interval(1))
    write_record(entry=Run(ago(5), 0))
    first, second = beat(), beat()
    first.tick()
    first.tick()
    assert names(sent) == ["shop.entry"]
    kill(first)  # before it has written the database
    task.refresh_from_db()
    assert task.enabled
    ticks(second)
    ticks(second)
    task.refresh_from_db()
    assert names(sent) == ["shop.entry"]
    assert not task.enabled


def test_a_database_that_is_away_at_a_handover_does_not_end_the_beat(beat, sent, caplog):
    add()
    write_record(entry=ago(2 * HOUR))
    leader = beat()

    def away(*args):
        raise OperationalError("away")

    with connection.execute_wrapper(away):
        assert leader.tick() == 0  # now it leads
        for _ in range(3):
            assert leader.tick() == beat_module.RETRY_SECONDS
    assert leader.leads
    assert "Beat cannot use the database, will retry" in caplog.text
    ticks(leader)
    assert names(sent) == ["shop.entry"]
