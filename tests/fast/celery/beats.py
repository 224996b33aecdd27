"""Beats in this process: their ticks, and the messages that they send."""

import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from redis.exceptions import ConnectionError

from django_redislock import locks
from django_redislock.celery import beat
from django_redislock.celery.beat import LeaderScheduler
from django_redislock.celery.last_runs import LastRuns, Run
from django_redislock.testing import lose

NAME = "beat:shop"

HOUR = 3600

RECORDS = "*}:beat:*"
"""The keys of all last runs."""


def make_app(schedule: dict[str, Any] | None = None, **conf: Any) -> Celery:
    """An app whose broker is in this process."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(
        beat_schedule=schedule or {},
        result_expires=None,
        beat_enable_remote_control=True,  # so that a tick does not wait without a limit
        beat_remote_control_max_tick_age=0.25,
        **conf,
    )
    return app


def ago(seconds: float) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)


def write_record(fence_token: int = 1, **runs: Run | datetime) -> None:
    """Record last runs, as the first leader ever would."""
    record = LastRuns(locks, NAME)
    for entry, run in runs.items():
        record.note(entry, Run(run, 1) if isinstance(run, datetime) else run)
    assert record.record(fence_token)


def read_record(redis_server) -> dict[str, Run]:
    """Read the last runs, as an observer."""
    keys = list(redis_server.scan_iter(RECORDS))
    fields = redis_server.hgetall(keys[0]) if keys else {}
    return {
        field.removeprefix("run:"): Run.parse(text)
        for field, text in fields.items()
        if field != "fence"
    }


def lose_record(redis_server) -> None:
    """Let Redis lose the last runs."""
    redis_server.delete(*redis_server.scan_iter(RECORDS))


def ticks(leader: LeaderScheduler, most: int = 20) -> float:
    """Tick until the beat would sleep, and return for how long."""
    for _ in range(most):
        if seconds := leader.tick():
            return seconds
    raise AssertionError(f"the beat does not sleep after {most} ticks")


@pytest.fixture
def make_beat(redis_server, monkeypatch):
    """Return a function that makes a beat, which does not wait long."""
    monkeypatch.setattr(beat, "RETRY_SECONDS", 0.01)
    made = []

    def make(cls=beat.PersistentScheduler, *, app=None, **entries):
        made.append(cls(app or make_app(entries)))
        return made[-1]

    yield make
    for each in made:
        with contextlib.suppress(ConnectionError):
            each.close()
    for key in redis_server.scan_iter(RECORDS):
        redis_server.delete(key)


def kill(leader: LeaderScheduler) -> None:
    """Let the leader end without a release, and its lease expire."""
    leader._term.auto_renewal = False
    lose(NAME)


def take_over(first: LeaderScheduler, second: LeaderScheduler) -> None:
    """Let the first beat lead and be killed, and the second one take over."""
    ticks(first)
    kill(first)
    ticks(second)
    assert second.leads


def names(sent: list[dict[str, Any]]) -> list[str]:
    """The names of the tasks of messages, from their headers."""
    return [headers["task"] for headers in sent]
