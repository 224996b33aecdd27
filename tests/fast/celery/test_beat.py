"""Several beats of one schedule, in this process: one sends, and the next one continues."""

import logging
import sys
from datetime import UTC, datetime

import pytest
from celery.schedules import crontab, schedule
from django.core.exceptions import ImproperlyConfigured
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError

from django_redislock import locks
from django_redislock.celery import beat as beats_module
from django_redislock.celery.beat import PersistentScheduler
from django_redislock.celery.last_runs import Run
from django_redislock.testing import lose
from tests.lock_tools import within

from .beats import (
    HOUR,
    NAME,
    RECORDS,
    ago,
    kill,
    lose_record,
    make_app,
    names,
    read_record,
    take_over,
    ticks,
    write_record,
)

HOURLY = {"task": "shop.hourly", "schedule": HOUR}


# Leaders


def test_one_beat_sends_and_the_others_stand_by(make_beat, sent, caplog):
    caplog.set_level(logging.INFO, "django_redislock")
    write_record(hourly=ago(5.5 * HOUR))  # it was due several times
    first, second = make_beat(hourly=HOURLY), make_beat(hourly=HOURLY)
    ticks(first)
    for _ in range(3):
        with within(20):  # often enough for remote control
            assert second.tick() == 0  # it has waited for a term
    assert names(sent) == ["shop.hourly"]
    assert (first.leads, second.leads) == (True, False)
    assert locks.get(NAME).metadata == {"role": "leader"}
    assert f"lock -> {NAME}" in first.info  # in Celery's banner
    assert caplog.text.count(f"Beat leads: name='{NAME}' fence_token=") == 1
    assert caplog.text.count(f"Beat stands by: name='{NAME}' leader=") == 1

    class Other(PersistentScheduler):
        lock_name = "other-beat"

    other = make_beat(Other, hourly=HOURLY)
    ticks(other)
    assert other.leads


def test_a_deposed_beat_does_not_exit_and_sends_nothing(make_beat, sent, caplog):
    first, second = make_beat(hourly=HOURLY), make_beat(hourly=HOURLY)
    take_over(first, second)
    first.schedule["hourly"].last_run_at = ago(2 * HOUR)
    for _ in range(3):
        assert first.tick() == 0
    assert sent == []
    assert f"Beat does not lead any more, and stands by: name='{NAME}'" in caplog.messages
    second.close()
    ticks(first)
    assert first.leads


def test_a_beat_that_is_deposed_during_a_tick_sends_nothing(make_beat, sent):
    beat = make_beat(hourly=HOURLY)
    ticks(beat)
    entry = beat.schedule["hourly"]
    beat.reserve(entry)  # as a tick does
    lose(NAME)
    beat.apply_entry(entry)
    assert sent == []


def test_a_deposed_beat_cannot_record_anything(make_beat, redis_server, caplog):
    first, second = make_beat(hourly=HOURLY), make_beat(hourly=HOURLY)
    take_over(first, second)
    before = read_record(redis_server)
    first._note_run(next(first.schedule["hourly"]))  # it was sending all the time
    assert read_record(redis_server) == before
    assert "Beat was deposed while it sent" in caplog.text
    assert "entries=hourly" in caplog.text
    assert not first.leads


@pytest.mark.parametrize("is_ticking", [True, False])
def test_a_beat_exits_although_a_finalizer_has_ignored_the_exit(
    make_beat, monkeypatch, is_ticking
):
    def interrupted(self, *args):
        self.close()  # as a signal handler does. Its SystemExit is lost
        return 1.0

    beat = make_beat(hourly=HOURLY)
    ticks(beat)
    if is_ticking:
        monkeypatch.setattr("celery.beat.Scheduler.tick", interrupted)
    else:
        beat.close()
    with pytest.raises(SystemExit):
        beat.tick()
    beat.close()
    assert not beat.leads


# Messages


def test_a_message_that_was_sent_but_not_recorded_is_sent_again_with_its_task_id(
    make_beat, sent, monkeypatch
):
    """Three leaders in a row are killed between the two."""
    write_record(hourly=ago(2 * HOUR))

    def die(following):
        raise SystemExit

    for _ in range(3):
        leader = make_beat(hourly=HOURLY)
        monkeypatch.setattr(leader, "_note_run", die)
        leader.tick()
        with pytest.raises(SystemExit):
            leader.tick()
        kill(leader)
    for _ in range(2):
        last = make_beat(hourly=HOURLY)
        ticks(last)
        last.close()
    assert len(sent) == 4  # the last beat knows that it was sent
    assert len({headers["id"] for headers in sent}) == 1


def test_the_options_of_an_entry_are_kept_and_each_tick_has_its_own_task_id(make_beat, sent):
    write_record(hourly=ago(2 * HOUR), other=ago(HOUR / 2))
    options = {"task_id": "mine"}, {"queue": "slow"}
    hourly, other = ({**HOURLY, "options": each} for each in options)
    beat = make_beat(hourly=hourly, other=other)
    ticks(beat)
    beat.apply_async(beat.schedule["other"])
    assert sent[0]["id"] == "mine"
    assert len(sent) == 2
    assert beat.schedule["other"].options["queue"] == "slow"
    assert "task_id" not in beat.schedule["other"].options
    beat.close()
    sent.clear()
    often = make_beat(often={"task": "shop.often", "schedule": 0.01})
    while len(sent) < 4:
        often.tick()
    assert len({headers["id"] for headers in sent}) == 4


@pytest.mark.parametrize("error", [OperationalError, ConnectionError])
def test_what_was_not_sent_because_a_server_was_away_is_sent_later(
    make_beat, sent, monkeypatch, redis_server, error
):
    write_record(hourly=ago(2 * HOUR))
    beat = make_beat(hourly=HOURLY)
    before = read_record(redis_server)

    def fail(*args, **kwargs):
        raise error("away")

    with monkeypatch.context() as patch:
        patch.setattr(beat, "send_task", fail)
        for _ in range(3):
            assert ticks(beat) == beats_module.RETRY_SECONDS
    assert read_record(redis_server) == before
    ticks(beat)
    assert names(sent) == ["shop.hourly"]


def test_what_was_not_sent_because_the_result_backend_was_away_is_not_recorded(
    make_beat, sent, redis_server
):
    once = {"max_retries": 0, "interval_start": 0, "interval_step": 0, "interval_max": 0}
    app = make_app(
        {"hourly": HOURLY},
        result_backend="redis://127.0.0.1:1/0",
        result_backend_transport_options={"retry_policy": once},
    )
    write_record(hourly=ago(2 * HOUR))
    before = read_record(redis_server)
    beat = make_beat(app=app)
    assert ticks(beat) == beats_module.RETRY_SECONDS
    assert read_record(redis_server) == before
    assert sent == []


def test_an_entry_that_cannot_be_sent_does_not_block_the_others(
    make_beat, sent, monkeypatch, redis_server
):
    write_record(refused=ago(3 * HOUR), wrong=ago(3 * HOUR), hourly=ago(2 * HOUR))
    entry = {"task": "shop.refused", "schedule": HOUR}
    no_json = {"task": "shop.wrong", "schedule": HOUR, "args": (object(),)}
    beat = make_beat(refused=entry, wrong=no_json, hourly=HOURLY)
    beat.schedule = {name: beat.schedule[name] for name in ("refused", "wrong", "hourly")}
    send_task, refusals = beat.send_task, []

    def refuse(name, *args, **kwargs):
        if name == "shop.refused":
            refusals.append(name)
            raise OperationalError("no such exchange")
        return send_task(name, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(beat, "send_task", refuse)
        ticks(beat)
        assert "shop.hourly" in names(sent)
        assert len(refusals) == 1
        assert read_record(redis_server)["refused"].count == 1
    ticks(beat)
    assert "shop.refused" in names(sent)


# The record


def test_an_entry_begins_when_it_is_added_and_not_with_a_restart(make_beat, sent, redis_server):
    write_record(hourly=ago(2 * HOUR))
    without = make_beat()
    ticks(without)
    assert read_record(redis_server) == {}
    without.close()
    first = make_beat(hourly=HOURLY)  # it is added again
    ticks(first)
    before = read_record(redis_server)["hourly"]
    first.close()
    second = make_beat(hourly=HOURLY)
    ticks(second)
    assert read_record(redis_server)["hourly"] == before
    assert second.schedule["hourly"].last_run_at == before.at
    assert sent == []


@pytest.mark.parametrize("is_deposed", [False, True])
def test_what_cannot_be_recorded_is_recorded_later(
    make_beat, sent, monkeypatch, redis_server, is_deposed
):
    write_record(hourly=ago(2 * HOUR))
    beat = make_beat(hourly=HOURLY)

    def away(*args, **kwargs):
        raise ConnectionError("away")

    with monkeypatch.context() as patch:
        patch.setattr(beat._last_runs, "record", away)
        ticks(beat)
    assert names(sent) == ["shop.hourly"]
    assert read_record(redis_server)["hourly"].count == 1
    if is_deposed:
        lose(NAME)
    ticks(beat)
    assert names(sent) == ["shop.hourly"]
    assert read_record(redis_server)["hourly"].count == 2


def test_a_leader_remembers_what_redis_has_lost(make_beat, sent, redis_server):
    write_record(hourly=ago(2 * HOUR))
    beat = make_beat(hourly=HOURLY)
    ticks(beat)
    before = read_record(redis_server)
    lose_record(redis_server)
    lose(NAME)
    ticks(beat)
    assert read_record(redis_server) == before
    assert names(sent) == ["shop.hourly"]


@pytest.mark.parametrize("is_lost", [False, True])
def test_an_entry_without_a_record_begins_with_the_term_and_not_with_the_process(
    make_beat, sent, redis_server, is_lost
):
    first = make_beat(**({"hourly": HOURLY} if is_lost else {}))
    standby = make_beat(hourly=HOURLY)
    standby.schedule["hourly"].last_run_at = ago(24 * HOUR)
    ticks(first)
    kill(first)
    if is_lost:
        lose_record(redis_server)
    ticks(standby)
    assert standby.leads
    assert sent == []
    assert read_record(redis_server)["hourly"].at > ago(HOUR)


def test_a_leader_forgets_what_it_knew_before_another_one_led(make_beat, sent, redis_server):
    write_record(hourly=ago(HOUR / 2))
    first, second = make_beat(hourly=HOURLY), make_beat(hourly=HOURLY)
    take_over(first, second)
    assert first.tick() == 0  # it stands by
    kill(second)
    lose_record(redis_server)
    first.schedule["hourly"].schedule = schedule(HOUR / 4)  # due, if the old last run counted
    ticks(first)
    assert first.leads
    assert sent == []


def test_a_record_that_does_not_parse_is_skipped(make_beat, redis_server):
    write_record(hourly=ago(HOUR / 2))
    [key] = redis_server.scan_iter(RECORDS)
    redis_server.hset(key, mapping={"run:broken": "no run", "run:odd": "[1]", "other": "x"})
    ticks(make_beat(hourly=HOURLY, broken=HOURLY))
    assert {"run:hourly", "run:broken", "fence"} <= set(redis_server.hkeys(key))
    assert Run.parse(redis_server.hget(key, "run:broken")).at > ago(HOUR)


def test_a_record_with_a_larger_fencing_token_is_not_touched(make_beat, sent, caplog):
    write_record(9 * 10**15, hourly=ago(2 * HOUR))
    beat = make_beat(hourly=HOURLY)
    assert beat.tick() == beats_module.RETRY_SECONDS
    assert not beat.leads
    assert sent == []
    assert "larger fencing token" in caplog.text


def test_a_beat_waits_until_redis_is_back(make_beat, settings, caplog):
    away = {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "away": away}

    class Away(PersistentScheduler):
        lock_using = "away"

    beat = make_beat(Away, hourly=HOURLY)
    assert beat.tick() == beats_module.RETRY_SECONDS
    assert beat.tick() == beats_module.RETRY_SECONDS
    assert "Beat cannot lead, will retry" in caplog.text


def test_only_remote_control_limits_the_wait_for_a_term():
    any_age = {"beat_enable_remote_control": True, "beat_remote_control_max_tick_age": 0}
    assert beats_module.longest_wait({}) is None
    assert beats_module.longest_wait(any_age) is None


# They are not due a second time while a test runs.
KINDS = {
    "interval": schedule(HOUR),
    "crontab": crontab(minute=(datetime.now(UTC).minute + 30) % 60),
    "crontab of one hour": crontab(minute=0, hour=(datetime.now(UTC).hour - 3) % 24),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_schedule_is_continued(make_beat, sent, kind):
    write_record(entry=ago(26 * HOUR))
    schedule = {"entry": {"task": "shop.task", "schedule": KINDS[kind]}}
    take_over(*(make_beat(app=make_app(schedule, timezone="Europe/Berlin")) for _ in range(2)))
    assert names(sent) == ["shop.task"]


def test_a_missing_package_is_an_error_that_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "django_redislock.celery.database_beat", None)
    with pytest.raises(ImproperlyConfigured, match="django-celery-beat"):
        beats_module.DatabaseScheduler  # noqa: B018
    with pytest.raises(AttributeError, match="DatabaseSchedule'"):
        beats_module.DatabaseSchedule  # noqa: B018
