"""Several beats of the schedule that django-celery-beat has in the database."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.db import OperationalError, connection
from django.utils import timezone
from django_celery_beat.models import (
    ClockedSchedule,
    CrontabSchedule,
    IntervalSchedule,
    PeriodicTask,
    PeriodicTasks,
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
    take_over,
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


def test_one_beat_sends_and_the_next_one_continues(beat, sent):
    add()
    write_record(entry=ago(2 * HOUR))
    first, second = beat(), beat()
    ticks(first)
    assert second.tick() == 0
    kill(first)
    ticks(second)
    assert names(sent) == ["shop.entry"]


def test_the_record_counts_and_not_the_database(beat, sent):
    task = add()
    PeriodicTask.objects.filter(pk=task.pk).update(last_run_at=ago(5 * HOUR), total_run_count=3)
    write_record(entry=Run(ago(HOUR / 2), 7))
    first = beat()
    ticks(first)
    assert sent == []
    assert first.schedule["entry"].total_run_count == 7


def test_without_a_record_the_database_counts(beat, sent, redis_server):
    task = add()
    PeriodicTask.objects.filter(pk=task.pk).update(last_run_at=ago(5 * HOUR), total_run_count=3)
    ticks(beat())
    assert names(sent) == ["shop.entry"]
    assert read_record(redis_server)["entry"].count == 4


def test_without_a_record_the_database_counts_for_a_beat_that_led_before_another_one(
    beat, redis_server
):
    task = add()
    write_record(entry=Run(ago(HOUR / 2), 7))
    first, second = beat(), beat()
    ticks(first)
    for _ in range(2):  # the first one is written to the database at once, the other one later
        first.apply_async(first.schedule["entry"])
    kill(first)
    ticks(second)
    second.apply_async(second.schedule["entry"])
    assert first.tick() == 0  # it stands by
    second.close()
    lose_record(redis_server)
    ticks(first)
    assert first.leads
    first.close()
    task.refresh_from_db()
    assert read_record(redis_server)["entry"].count == task.total_run_count == 10


def test_the_leader_writes_the_database_when_it_is_closed(beat):
    task = add()
    write_record(entry=Run(ago(5 * HOUR), 7))
    leader = beat()
    ticks(leader)
    leader.close()
    task.refresh_from_db()
    assert task.total_run_count == 8
    assert timezone.now() - task.last_run_at < timedelta(minutes=1)


def test_a_deposed_beat_does_not_write_the_database(beat):
    task = add()
    write_record(entry=Run(ago(5 * HOUR), 7))
    first = beat()
    ticks(first)
    first.apply_async(first.schedule["entry"])
    kill(first)
    first.close()
    task.refresh_from_db()
    assert task.total_run_count == 8


def test_an_entry_that_is_added_is_sent(beat, sent):
    add("other")
    leader = beat()
    ticks(leader)
    add(**interval(1))
    PeriodicTask.objects.update(last_run_at=ago(2))
    ticks(leader)
    assert "shop.entry" in names(sent)


def test_a_change_of_an_entry_is_noticed(beat, sent):
    task = add()
    write_record(entry=ago(HOUR / 2))
    leader = beat()
    ticks(leader)
    assert sent == []
    task.interval = interval(60)["interval"]
    task.args = json.dumps([7])
    task.save()
    ticks(leader)
    assert names(sent) == ["shop.entry"]


def test_an_entry_that_is_removed_is_forgotten(beat, redis_server):
    task = add()
    add("other")
    leader = beat()
    ticks(leader)
    assert set(read_record(redis_server)) == {"entry", "other"}
    task.delete()
    ticks(leader)
    assert set(read_record(redis_server)) == {"other"}


def one_off():
    clocked = ClockedSchedule.objects.create(clocked_time=timezone.now() - timedelta(seconds=5))
    return {"clocked": clocked, "one_off": True}


def test_a_one_off_task_under_the_name_of_a_deleted_task_is_sent(beat, sent):
    deleted = add()
    write_record(entry=Run(ago(HOUR / 2), 3))
    leader = beat()
    ticks(leader)
    deleted.delete()
    task = add(**one_off())
    ticks(leader)
    ticks(leader)
    task.refresh_from_db()
    assert names(sent) == ["shop.entry"]
    assert not task.enabled


def test_the_next_leader_sends_a_one_off_task_under_the_name_of_a_deleted_task(beat, sent):
    deleted = add()
    write_record(entry=Run(ago(HOUR / 2), 3))
    first, second = beat(), beat()
    ticks(first)
    kill(first)
    deleted.delete()
    add(**one_off())
    ticks(second)
    assert names(sent) == ["shop.entry"]


def test_an_entry_that_is_enabled_again_begins_again(beat, sent, redis_server):
    task = add()
    write_record(entry=ago(HOUR / 2))
    leader = beat()
    ticks(leader)
    task.enabled = False
    task.save()
    ticks(leader)
    assert read_record(redis_server) == {}
    task.enabled = True
    task.save()
    ticks(leader)
    assert sent == []
    assert datetime.now(UTC) - read_record(redis_server)["entry"].at < timedelta(minutes=1)


def test_a_change_by_update_is_noticed_if_it_is_announced(beat, sent, redis_server):
    task = add()
    write_record(entry=ago(HOUR / 2))
    leader = beat()
    ticks(leader)
    PeriodicTask.objects.update(enabled=False, last_run_at=None)
    PeriodicTasks.update_changed()
    ticks(leader)
    assert read_record(redis_server) == {}
    PeriodicTask.objects.update(enabled=True)
    PeriodicTasks.update_changed()
    ticks(leader)
    task.refresh_from_db()
    assert read_record(redis_server)["entry"].at == task.date_changed
    assert sent == []


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


def test_a_daily_entry_is_sent_although_no_beat_ran_for_hours(beat, sent):
    hour = (timezone.now().hour - 6) % 24
    daily = CrontabSchedule.objects.create(minute="0", hour=str(hour), timezone="UTC")
    add(crontab=daily)
    write_record(entry=ago(28 * HOUR))
    ticks(beat())
    assert names(sent) == ["shop.entry"]


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/Los_Angeles", "Europe/Berlin"])
def test_a_crontab_in_another_time_zone_is_continued(beat, sent, zone):
    # It is not due a second time while the test runs.
    minute = (datetime.now(ZoneInfo(zone)).minute + 30) % 60
    hourly = CrontabSchedule.objects.create(minute=str(minute), hour="*", timezone=zone)
    add(crontab=hourly)
    write_record(entry=ago(2 * HOUR))
    first, second = beat(timezone="Europe/Berlin"), beat(timezone="Europe/Berlin")
    for _ in range(3):
        ticks(first)
    kill(first)
    ticks(second)
    assert names(sent) == ["shop.entry"]


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


def test_a_one_off_task_that_is_enabled_again_is_sent_again(beat, sent, redis_server):
    task = add(one_off=True, **interval(1))
    write_record(entry=Run(ago(5), 0))
    leader = beat()
    ticks(leader)
    task.refresh_from_db()
    while task.enabled:
        ticks(leader)
        task.refresh_from_db()
    ticks(leader)
    assert read_record(redis_server) == {}
    task.enabled = True
    task.save()
    PeriodicTask.objects.update(last_run_at=ago(5))
    ticks(leader)
    assert names(sent) == ["shop.entry", "shop.entry"]


def test_a_clocked_task_is_sent_once(beat, sent):
    task = add(**one_off())
    first, second = beat(), beat()
    first.tick()
    first.tick()
    kill(first)
    ticks(second)
    ticks(second)
    task.refresh_from_db()
    assert names(sent) == ["shop.entry"]
    assert not task.enabled


@pytest.mark.filterwarnings(r"ignore:datetime\.datetime\.utcnow:DeprecationWarning")
def test_naive_times_are_in_utc(beat, sent, settings):
    settings.USE_TZ = False
    settings.TIME_ZONE = "America/New_York"
    settings.DJANGO_CELERY_BEAT_TZ_AWARE = False
    add()
    write_record(entry=ago(1.5 * HOUR))
    first, second = beat(), beat()
    take_over(first, second)
    assert names(sent) == ["shop.entry"]
