"""Tasks of `django.tasks` that take a queue lock when they are enqueued."""

import asyncio
import uuid
from dataclasses import replace
from datetime import timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.tasks import TaskResultStatus, task
from django.tasks.signals import task_finished
from django.utils import timezone
from redis.exceptions import ConnectionError

from django_redislock import AlreadyRunning, locks, single_instance
from django_redislock.tasks import SingleInstanceBackend, was_skipped
from django_redislock.testing import assert_skipped, conflict
from tests.lock_tools import start

from . import queued as tasks
from . import sample


@pytest.fixture
def account():
    """An account of this test's own. Its lock is released at the end."""
    account = uuid.uuid4().hex
    yield account
    locks.force_release(f"queued:{account}")


def lease(account) -> float:
    return locks.get(f"queued:{account}").ttl


def test_enqueue_returns_the_result_of_the_queued_task(account, skipped, caplog) -> None:
    first = tasks.queued.enqueue(account)
    info = locks.get(f"queued:{account}")
    assert info.holder.task_name == tasks.queued.module_path
    assert info.holder.task_id == first.id
    assert info.metadata["queued"] is True
    assert 3590 < info.ttl <= 3600

    second = tasks.queued.enqueue(account)
    assert second == first
    assert asyncio.run(tasks.queued.aenqueue(account)).id == first.id
    assert [facts["holder_task_id"] for facts in skipped] == [first.id] * 2
    assert {facts["sender"] for facts in skipped} == {tasks.queued}
    assert f"Task skipped: task={tasks.queued.module_path}" in caplog.text


def test_another_task_with_the_same_key_is_not_answered_with_its_result(account, skipped) -> None:
    first = tasks.queued.enqueue(account)
    other = tasks.until_executed.enqueue(account)
    assert other.id != first.id
    assert was_skipped(other)
    assert [facts["task_id"] for facts in skipped] == [other.id]
    with pytest.raises(AlreadyRunning) as caught:
        tasks.strict.enqueue(account)
    assert caught.value.task_id == first.id


def test_a_task_that_cannot_be_enqueued_leaves_no_lock() -> None:
    no_json = uuid.uuid4()
    with pytest.raises(TypeError):
        tasks.queued.enqueue(no_json)
    assert locks.get(f"queued:{no_json}") is None


def test_of_eight_threads_one_enqueues(account) -> None:
    results = [start(tasks.queued.enqueue, account) for _ in range(8)]
    assert len({each.result(60).id for each in results}) == 1


def test_a_direct_call_takes_the_queue_lock_over(account, hold) -> None:
    """So does the call of a backend that does not send `task_started`."""
    tasks.queued.enqueue(account)
    assert tasks.queued.call(account) == "ran"
    tasks.strict.enqueue(account)
    assert tasks.strict.call(None, account) == "ran"
    hold(f"queued:{account}")
    assert tasks.queued.call(account) is None


def test_a_conflict_can_be_simulated(account) -> None:
    with conflict(tasks.queued, account) as other, assert_skipped(tasks.queued):
        assert tasks.queued.enqueue(account).id == other.task_id


def test_nothing_is_enqueued_if_redis_is_unreachable(settings) -> None:
    away = {"BACKEND": settings.CACHES["default"]["BACKEND"], "LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "away": away}
    queued = single_instance(mode="until_executed", using="away")(
        task(backend="queue")(sample.work)
    )
    before = len(queued.get_backend().results)
    with pytest.raises(ConnectionError):
        queued.enqueue()
    assert len(queued.get_backend().results) == before


def test_the_queue_lock_lasts_until_the_task_is_due(account) -> None:
    due = timezone.now() + timedelta(hours=2)
    tasks.queued.using(run_after=due).enqueue(account)
    assert 3 * 3600 - 10 < lease(account) <= 3 * 3600


@pytest.mark.django_db(transaction=True)
def test_the_queue_lock_is_short_until_the_commit(account) -> None:
    with transaction.atomic():
        first = tasks.queued.enqueue(account)
        assert tasks.queued.enqueue(account).id == first.id
        transaction.set_rollback(True)
    assert lease(account) <= 60
    locks.force_release(f"queued:{account}")
    with transaction.atomic():
        first = tasks.queued.enqueue(account)
        assert lease(account) <= 60
    assert lease(account) > 3590
    assert tasks.queued.enqueue(account).id == first.id


def test_after_a_task_that_failed_before_its_start_the_next_one_is_enqueued(account) -> None:
    result = tasks.strict.enqueue(account)
    failed = replace(result, status=TaskResultStatus.FAILED)
    task_finished.send(type(tasks.strict.get_backend()), task_result=failed)
    assert locks.get(f"queued:{account}") is None
    first = tasks.queued.enqueue(account)
    [stored] = [each for each in tasks.queued.get_backend().results if each.id == first.id]
    object.__setattr__(stored, "status", TaskResultStatus.FAILED)  # without a signal
    assert tasks.queued.enqueue(account).id != first.id


def test_a_task_that_runs_at_once_takes_its_queue_lock_over(account) -> None:
    inner = []
    sample.inside.append(lambda: inner.append(tasks.until_executed.enqueue(account)))
    outer = tasks.until_executed.enqueue(account)
    assert outer.return_value == ["ran", [tasks.until_executed.module_path, outer.id]]
    assert [each.id for each in inner] == [outer.id]
    assert locks.get(f"queued:{account}") is None
    result = asyncio.run(tasks.async_until_executed.aenqueue(account))
    assert result.return_value == result.id
    assert locks.get(f"queued:{account}") is None


def test_the_queue_lock_is_released_and_a_cooldown_begins_when_the_task_starts(account) -> None:
    inner = []
    sample.inside.append(lambda: inner.append(tasks.until_executing.enqueue(account)))
    outer = tasks.until_executing.enqueue(account)
    assert [each.return_value for each in (outer, *inner)] == ["ran", "ran"]
    assert locks.get(f"queued:{account}") is None
    first = tasks.throttled.enqueue(account)
    assert first.return_value == "ran"
    assert tasks.throttled.enqueue(account).id == first.id
    assert 25 < lease(account) <= 30


def test_a_backend_with_queue_locks_runs_other_tasks_too_and_one_without_is_refused() -> None:
    other = sample.takes_a_lock.using(backend="single")
    for result in (other.enqueue(), asyncio.run(other.aenqueue())):
        assert result.return_value == [other.module_path, result.id]
    expected = "must be 'django_redislock.tasks.SingleInstanceBackend', around django.tasks"
    with pytest.raises(ImproperlyConfigured, match=expected):
        single_instance(mode="until_executed")(sample.takes_a_lock)
    with pytest.raises(ImproperlyConfigured, match=r"TASKS\['x'\]\['OPTIONS'\]\['BACKEND'\]"):
        SingleInstanceBackend("x", {"OPTIONS": {"BACKEND": "nowhere.Backend"}})
