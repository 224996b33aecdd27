"""A task takes a queue lock when it is sent. These are the results for the sender."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from celery import chain, chord, group
from celery.contrib.django.task import DjangoTask
from celery.exceptions import Retry
from celery.result import AsyncResult
from django.db import transaction
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError

from django_redislock import AlreadyRunning, locks, single_instance
from django_redislock.celery.message import AGAIN, DUPLICATE, EXPECTED, QUEUE_LOCK
from django_redislock.lock_state import queued_task
from django_redislock.lock_types import QueueLock
from django_redislock.tasks.single import queue_lock_token
from django_redislock.validators import MAX_LEASE_SECONDS
from tests.lock_tools import start
from tests.tools import wait_until

from .tools import (
    WHEN_SENT,
    Unsendable,
    elsewhere,
    held_by,
    make_task,
    outcomes,
    queue_lock,
    run_message,
)


@pytest.mark.parametrize("mode", WHEN_SENT)
def test_the_sender_of_a_duplicate_gets_the_result_of_the_queued_task(
    app, name, sent, signals, mode
):
    task = make_task(app, name, mode)
    first = task.delay()
    info = queue_lock(name, mode)
    assert info.holder.task_id == first.id
    assert info.holder.task_name == f"tests.{name}"
    assert 3590 < info.ttl <= 3600

    second = task.delay()
    assert isinstance(second, AsyncResult)
    assert second.id == first.id
    [headers] = sent
    assert (headers["id"], headers[QUEUE_LOCK]) == (first.id, info.name)
    [(what, _, holder)] = signals
    assert (what, holder) == ("skipped", first.id)


def test_the_queue_lock_shows_when_the_task_starts_and_its_broker_queue(app, name, sent):
    task_id, eta = uuid.uuid4(), datetime.now(UTC) + timedelta(seconds=90)
    result = make_task(app, name).apply_async(queue="slow", eta=eta, task_id=task_id)
    assert {result.id, sent[0]["id"], locks.get(name).holder.task_id} == {str(task_id)}
    queued = queued_task(locks.get(name).first)
    assert queued.broker_queue == "slow"
    assert abs(queued.eta - eta) < timedelta(seconds=1)


def test_no_lock_has_the_name_of_a_queue_lock(app, name, sent):
    @single_instance(mode="until_and_while_executing", key=f"{name}:{{user}}")
    @app.task(name=f"tests.{name}")
    def report(user): ...

    refused = f"'{name}:bob:queued' must not end with ':queued'"
    with pytest.raises(ValueError, match=refused):
        report.delay("bob:queued")
    assert (held_by(name), sent) == ({}, [])


# Duplicates


def test_on_conflict_raise_tells_the_sender_which_task_is_queued(app, name, sent):
    options = {"autoretry_for": (AlreadyRunning,)}
    task = make_task(app, name, on_conflict="raise", task=options)
    first = task.delay()
    with pytest.raises(AlreadyRunning) as caught:
        task.delay()
    assert (caught.value.name, caught.value.task_id) == (name, first.id)
    assert 0 < caught.value.expires_in <= 3600
    assert len(sent) == 1

    headers = {DUPLICATE: first.id}  # sent, because others need its result
    assert run_message(app, task, headers=headers, task_id="second").type is Retry
    assert sent[1]["id"] == "second"
    assert DUPLICATE not in sent[1]  # it is no duplicate any more


def test_a_duplicate_of_a_holder_that_is_no_task_has_no_result_of_another(app, name, sent):
    with locks.lock(name):
        result = make_task(app, name).delay()
    assert [(each["id"], each[DUPLICATE]) for each in sent] == [(result.id, "")]


def test_the_limit_is_the_number_of_queued_tasks(app, name, sent):
    task = make_task(app, name, limit=2)
    ids = {task.delay().id for _ in range(4)}
    assert len(sent) == 2
    assert {each.holder.task_id for each in locks.get(name).holders} == ids


IN_CANVAS = {
    "chain": lambda task: chain(task.si(), task.si()),
    "group": lambda task: group(task.si(), task.si()),
    "chord": lambda task: chord([task.si(), task.si()], task.si()),
    "own id": lambda task: task.si().set(task_id=uuid.uuid4().hex),
    "link": lambda task: task.si().set(link=task.si()),
    "link_error": lambda task: task.si().set(link_error=task.si()),
}


@pytest.mark.parametrize("canvas", IN_CANVAS)
def test_a_duplicate_whose_result_is_expected_is_sent(app, name, sent, canvas):
    task = make_task(app, name)
    first = task.delay()
    IN_CANVAS[canvas](task).apply_async()
    assert sent[1:]
    assert {each[DUPLICATE] for each in sent[1:]} == {first.id}


@pytest.mark.parametrize("limit", [None, 2])
def test_the_id_of_a_queued_or_running_task_is_not_sent_again(app, name, sent, limit):
    def send_again():
        return elsewhere(lambda: task.apply_async(task_id="own")).id

    task = make_task(app, name, limit=limit, body=send_again)
    task.apply_async(task_id="own")
    assert send_again() == "own"
    assert run_message(app, task, headers={QUEUE_LOCK: name}) == "own"
    assert len(sent) == 1


# Replacing a queued task


@pytest.mark.parametrize("mode", WHEN_SENT)
def test_a_newer_task_replaces_a_queued_one(app, name, sent, signals, revoked, mode):
    task = make_task(app, name, mode, on_conflict="replace")
    first, second = task.delay(), task.delay()
    assert queue_lock(name, mode).holder.task_id == second.id
    assert signals == [("replaced", first.id, second.id)]
    assert [each["id"] for each in sent if "id" in each] == [first.id, second.id]
    assert revoked == [first.id]
    assert first.state == "REVOKED"
    lock_name = queue_lock(name, mode).name
    assert "passed" in outcomes(lock_name, first.id)
    assert not {"skipped", "refused"} & set(outcomes(lock_name, second.id))


def test_of_several_tasks_that_are_sent_at_once_none_is_skipped(app, name, signals, revoked):
    task = make_task(app, name, on_conflict="replace")
    results = [start(task.delay) for _ in range(12)]
    ids = {result.result(60).id for result in results}
    assert len(ids) == 12
    assert [what for what, *_ in signals] == ["replaced"] * 11
    assert {locks.get(name).holder.task_id} == ids - set(revoked)


def test_a_newer_task_does_not_replace_a_running_one(app, name, signals):
    def send_duplicates():
        return [task.delay().id, elsewhere(task.delay).id]

    task = make_task(app, name, on_conflict="replace", body=send_duplicates)
    assert task.apply(task_id="running").get() == ["running"] * 2
    assert [what for what, *_ in signals] == ["skipped"] * 2
    assert locks.get(name) is None


def test_a_task_whose_result_is_expected_is_replaced_but_not_revoked(app, name, signals, revoked):
    task = make_task(app, name, on_conflict="replace")
    member = chain(task.si(), task.si()).apply_async().parent
    second, third = task.delay(), task.delay()
    assert signals == [("replaced", member.id, second.id), ("replaced", second.id, third.id)]
    assert revoked == [second.id]
    assert task.apply(task_id=member.id, headers={QUEUE_LOCK: name}).get() is None


def test_a_forged_queue_lock_has_no_task_revoked(app, name, revoked, redis_server):
    """The forger can read and write Redis, and knows everything but SECRET_KEY."""
    task = make_task(app, name, on_conflict="replace")
    queued, victim = task.delay().id, uuid.uuid4().hex
    [key] = redis_server.scan_iter(f"*:lock:{name}")
    field = f"h:{queue_lock_token(queued)}"
    record = redis_server.hget(key, field).replace(queued, victim)
    redis_server.hdel(key, field)
    redis_server.hset(key, f"h:{queue_lock_token(victim)}", record)
    assert locks.get(name).holder.task_id == victim
    task.delay()
    assert revoked == []
    assert app.AsyncResult(victim).state == "PENDING"


def test_a_task_is_replaced_although_the_broker_cannot_revoke_it(
    app, name, signals, monkeypatch, caplog
):
    def revoke(task_id):
        raise OperationalError("no broker")

    monkeypatch.setattr(app.control, "revoke", revoke)
    task = make_task(app, name, on_conflict="replace")
    first, second = task.delay(), task.delay()
    assert signals == [("replaced", first.id, second.id)]
    assert f"task={first.id} reason=no broker" in caplog.text


# What can fail


@pytest.mark.django_db(transaction=True)
def test_delay_on_commit_takes_the_queue_lock_on_commit(app, name, sent):
    task = make_task(app, name, task={"base": DjangoTask})
    with transaction.atomic():
        task.delay_on_commit()
        assert locks.get(name) is None
    assert locks.get(name).holder.task_id == sent[0]["id"]


def test_a_message_that_was_not_sent_has_no_queue_lock(app, name):
    with pytest.raises(OperationalError):
        make_task(app, name, task={"base": Unsendable}).delay()
    assert locks.get(name) is None


def test_nothing_is_sent_if_redis_is_unreachable(app, name, sent, settings):
    away = {"BACKEND": settings.CACHES["default"]["BACKEND"], "LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "away": away}
    with pytest.raises(ConnectionError):
        make_task(app, name, using="away").delay()
    assert not sent


# The lease of a queue lock

LEASES = [
    ({"countdown": 100}, 3700),
    ({"eta": timedelta(seconds=50)}, 3650),
    ({"expires": timedelta(seconds=30)}, 30),
    ({"expires": 20, "countdown": 100}, 20),
    ({"expires": -5}, 1),
    ({"eta": datetime(9999, 1, 1, tzinfo=UTC)}, MAX_LEASE_SECONDS),
    ({"queue_timeout": timedelta(minutes=5)}, 300),
]


@pytest.mark.parametrize(("options", "seconds"), LEASES, ids=str)
def test_a_queue_lock_lasts_as_long_as_its_message_may_wait(app, name, options, seconds):
    options = dict(options)
    task = make_task(app, name, queue_timeout=options.pop("queue_timeout", None))
    moments = {
        key: datetime.now(UTC) + value if isinstance(value, timedelta) else value
        for key, value in options.items()
    }
    task.apply_async(**moments)
    info = locks.get(name)
    assert seconds - 10 < (info.ttl if info else 0) <= seconds


# A limit that is added or removed while tasks are queued or run


@pytest.mark.parametrize(("before", "now"), [(None, 2), (2, None)])
def test_a_task_that_was_sent_under_another_limit_runs(app, name, before, now):
    task = make_task(app, name, limit=now)
    lock = locks.semaphore(name, before) if before else locks.lock(name)
    assert QueueLock(lock, queue_lock_token("own"), (task.name, "own")).acquire(60)
    assert task.delay().id == "own"
    assert run_message(app, task, headers={QUEUE_LOCK: name}) == "ran"
    wait_until(lambda: held_by(name) == {})


# A task that is sent again


def test_one_that_takes_the_place_of_an_execution_whose_process_is_dead_is_sent(app, name, sent):
    def send_elsewhere():
        return elsewhere(lambda: task.apply_async(task_id="own", retries=1)).id

    task = make_task(app, name, body=send_elsewhere)
    assert task.apply(task_id="own").get() == "own"
    [headers] = sent
    assert (headers["id"], headers[AGAIN], QUEUE_LOCK in headers) == ("own", True, False)


@pytest.mark.parametrize("expected", [True, False])
def test_a_retry_is_expected_if_its_first_message_was(app, name, sent, revoked, expected):
    def retry():
        raise task.retry(countdown=0)

    task = make_task(app, name, on_conflict="replace", body=retry)
    task.apply_async(**({"task_id": "own"} if expected else {}))
    assert sent[0].get(EXPECTED, False) is expected
    locks.force_release(name)
    headers = {each: sent[0][each] for each in (QUEUE_LOCK, EXPECTED) if each in sent[0]}
    assert run_message(app, task, headers=headers).type is Retry
    assert locks.get(name).holder.task_id == "own"
    task.delay()
    assert revoked == ([] if expected else ["own"])
