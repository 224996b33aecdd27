"""A queue lock whose task has ended, as far as the result backend knows, is taken over."""

import uuid
from types import SimpleNamespace

import pytest
from celery import Task
from celery.signals import task_rejected, task_unknown
from django.db import transaction

from django_redislock import locks, single_instance
from django_redislock.celery.message import CACHE, QUEUE_LOCK
from tests.tools import wait_until

from .tools import WHEN_SENT, elsewhere, held_by, make_task, own_app, queue_lock, run_message

WITHIN = 20
"""Seconds. Before the commit, a queue lock has a lease of a minute."""


# Celery 5.4 and 5.7 store results with a command that redis-py 8 calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")


def store(app, task_id, state):
    app.backend.forget(task_id)  # a success is never overwritten
    error = LookupError("it") if state in ("FAILURE", "REVOKED", "RETRY") else None
    app.backend.store_result(task_id, error, state)


@pytest.mark.parametrize("state", ["SUCCESS", "FAILURE", "REVOKED"])
@pytest.mark.parametrize("mode", WHEN_SENT)
def test_the_next_task_is_sent(app, name, sent, signals, mode, state):
    task = make_task(app, name, mode)
    first = task.delay()
    store(app, first.id, state)
    second = task.delay()
    assert [each["id"] for each in sent] == [first.id, second.id]
    assert queue_lock(name, mode).holder.task_id == second.id
    assert task.delay().id == second.id
    assert [what for what, *_ in signals] == ["skipped"]
    assert run_message(app, task, headers=sent[1], task_id=second.id) == "ran"
    assert queue_lock(name, mode) is None


@pytest.mark.parametrize("state", ["PENDING", "RECEIVED", "STARTED", "RETRY"])
def test_a_task_that_has_not_ended_keeps_its_queue_lock(app, name, sent, state):
    task = make_task(app, name)
    first = task.delay()
    if state != "PENDING":
        store(app, first.id, state)
    assert task.delay().id == first.id
    assert len(sent) == 1


def test_a_limit_counts_only_tasks_that_have_not_ended(app, name, sent):
    task = make_task(app, name, limit=2)
    first, second = task.delay(), task.delay()
    store(app, second.id, "SUCCESS")
    third = task.delay()
    assert {each.holder.task_id for each in locks.get(name).holders} == {first.id, third.id}
    assert len(sent) == 3


def test_the_result_of_an_earlier_message_with_the_same_id_does_not_count(app, name, sent):
    task, task_id = make_task(app, name), uuid.uuid4().hex
    for number, state in enumerate(["SUCCESS", "FAILURE"], start=1):
        store(app, task_id, state)
        assert task.apply_async(task_id=task_id).id == task_id
        assert task.delay().id == task_id
        assert len(sent) == number


def test_a_task_that_sends_its_retry_and_succeeds_is_still_queued(app, name, sent):
    @single_instance(mode="until_executed", key=name)
    @app.task(bind=True, name=f"tests.{name}")
    def task(self):
        if not self.request.retries:
            self.retry(countdown=60, throw=False)
        return "ran"

    first = task.delay()
    assert run_message(app, task, headers=sent[0], task_id=first.id) == "ran"
    assert app.AsyncResult(first.id).state == "SUCCESS"
    assert task.delay().id == first.id
    assert len(sent) == 2
    store(app, first.id, "REVOKED")
    assert task.delay().id != first.id


def test_a_redelivered_message_does_not_run_next_to_the_task_that_took_its_queue_lock(
    app, name, sent
):
    """A worker without `single_instance` ran it, and died before it acknowledged the message."""
    ran = []
    task = make_task(app, name, task={"acks_late": True}, body=lambda: ran.append(1))
    first = task.delay()
    store(app, first.id, "FAILURE")
    second = task.delay()
    again = {"headers": sent[0], "task_id": first.id, "redelivered": True}
    run_message(app, task, **again)
    assert (ran, app.AsyncResult(first.id).state) == ([], "RETRY")
    assert held_by(name) == {name: second.id}
    run_message(app, task, headers=sent[1], task_id=second.id)
    run_message(app, task, **again)
    assert (ran, held_by(name)) == ([1, 1], {})


# The result backend


def test_a_result_backend_that_cannot_know_is_not_asked(name, sent):
    with own_app(backend="rpc://") as app:
        task = make_task(app, name)
        first = elsewhere(task.delay)
        assert elsewhere(task.delay).id == first.id
    assert len(sent) == 1


def test_if_the_result_backend_is_away_the_next_task_is_refused(app, name, monkeypatch, caplog):
    def away(*args, **options):
        raise OSError("away")

    task = make_task(app, name)
    first = task.delay()
    store(app, first.id, "SUCCESS")
    monkeypatch.setattr(app.backend, "get_task_meta", away)
    assert task.delay().id == first.id
    assert "Result of queued task is unknown: error=away" in caplog.text


# Messages that a worker drops


def drop(signal, **message):
    signal.send(sender=None, message=SimpleNamespace(**message), exc=LookupError())


@pytest.mark.parametrize("signal", [task_unknown, task_rejected])
def test_a_dropped_message_releases_its_queue_lock(app, name, sent, signal):
    task = make_task(app, name, using="django_redis")
    first = task.delay()
    drop(signal, headers=sent[0])
    assert task.delay().id != first.id
    drop(signal, headers=sent[1])


def test_a_forged_message_releases_no_lock_of_another_task(app, name, sent):
    first = make_task(app, name).delay()
    forged = [{}, {"id": ["other"]}, {CACHE: "missing"}, {CACHE: {"a": 1}}]
    forged += [{QUEUE_LOCK: value} for value in (None, ["x"], "x" * 1000)]
    for headers in (None, "text", *({**sent[0], "id": "other", **each} for each in forged)):
        drop(task_unknown, headers=headers, payload=[])
        assert held_by(name) == {name: first.id}, headers


# Messages that are not published


class Deferring(Task):
    """Sends its messages when the transaction is committed."""

    def apply_async(self, *args, **options):
        transaction.on_commit(lambda: super(Deferring, self).apply_async(*args, **options))


@pytest.mark.django_db(transaction=True)
def test_a_message_that_is_rolled_back_leaves_no_queue_lock(app, name, sent):
    task = make_task(app, name, task={"base": Deferring})
    with transaction.atomic():
        task.delay()
        assert locks.get(name).ttl <= 60
        transaction.set_rollback(True)
    wait_until(lambda: locks.get(name) is None, timeout=WITHIN)
    assert sent == []


@pytest.mark.django_db(transaction=True)
def test_a_message_that_is_committed_keeps_its_queue_lock(app, name, sent, revoked):
    task = make_task(app, name, task={"base": Deferring}, on_conflict="replace")
    with transaction.atomic():
        task.delay()
    assert (locks.get(name).holder.task_id, len(sent)) == (sent[0]["id"], 1)
    assert locks.get(name).ttl > 3590
    with transaction.atomic():
        task.delay()
        assert revoked == []
    assert revoked == [sent[0]["id"]]
