"""The assertions of the testing kit pass and fail correctly."""

import pytest
from celery import Celery
from django.core.exceptions import ImproperlyConfigured

from django_redislock import locks, single_instance
from django_redislock.signals import task_skipped
from django_redislock.testing import (
    assert_nothing_held,
    assert_retried,
    assert_skipped,
    conflict,
    held_elsewhere,
)

NAME = "tests:kit"


@pytest.fixture
def app():
    return Celery("tests.kit", broker="memory://", backend="cache+memory://", set_as_current=False)


@pytest.fixture
def work(app):
    @app.task(name="kit.work", shared=False)
    @single_instance(unique_on=["number"])
    def work(number):
        return "ran"

    return work


def test_a_held_lock_is_named_with_its_holder_in_printable_text() -> None:
    named = r"'tests:\\u202ekit' on 'default' by .*task-1"
    with (
        held_elsewhere("tests:\u202ekit", holder_task_id="task-1\x1b[2J"),
        pytest.raises(AssertionError, match=named) as error,
    ):
        assert_nothing_held(within=0)
    assert str(error.value).replace("\n", "").isprintable()


def test_a_held_lock_of_another_alias_is_found(settings) -> None:
    elsewhere = settings.CACHES["default"] | {"KEY_PREFIX": "elsewhere"}
    settings.CACHES = settings.CACHES | {"other": elsewhere}
    with held_elsewhere(NAME, using="other"):
        assert_nothing_held(using="default", within=0)
        for using in ({}, {"using": "other"}):
            with pytest.raises(AssertionError, match="on 'other'"):
                assert_nothing_held(**using, within=0)


def test_an_invalid_alias_is_ignored_unless_locks_use_it(settings) -> None:
    mistaken = settings.CACHES["default"] | {"OPTIONS": {"protocol": 5}}
    settings.CACHES = settings.CACHES | {"other": mistaken}
    assert_nothing_held()
    settings.REDISLOCK_CACHE = "other"
    with pytest.raises(ImproperlyConfigured, match="protocol"):
        assert_nothing_held()


def test_a_lock_may_be_released_within_the_time_limit() -> None:
    locks.lock(NAME, timeout=0.3, auto_renewal=False).acquire()
    with pytest.raises(AssertionError):
        assert_nothing_held(within=0)
    assert_nothing_held(within=10)
    for within in (-1, "soon"):
        with pytest.raises((TypeError, ValueError), match="within must be"):
            assert_nothing_held(within=within)


@pytest.mark.timeout(60)
def test_the_assertion_ends_with_a_frozen_clock(monkeypatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 0.0)  # as freezegun does
    with held_elsewhere(NAME), pytest.raises(AssertionError, match=NAME):
        assert_nothing_held(within=0.1)


def test_a_queued_task_holds_a_lock_and_a_cooldown_does_not(app) -> None:
    @single_instance(mode="until_executing")
    @app.task(name="kit.queued", shared=False)
    def queued():
        pass

    with conflict(queued), pytest.raises(AssertionError, match=r"kit\.queued .*, queued"):
        assert_nothing_held(within=0)
    with locks.lock(NAME, at_least_for=60):
        pass
    assert locks.get(NAME).state == "cooldown"
    assert_nothing_held(within=0)
    locks.force_release(NAME)


def test_a_task_that_runs_or_another_task_is_not_a_skipped_task(app, work) -> None:
    @app.task(name="kit.other", shared=False)
    def other(): ...

    message = r"Task kit\.work was not skipped within 0 s"
    with pytest.raises(AssertionError, match=message), assert_skipped(work, within=0):
        work.apply([7])
    message = r"Task kit\.other was not skipped"
    with (
        conflict(work, 7),
        pytest.raises(AssertionError, match=message),
        assert_skipped(other, within=0),
    ):
        work.apply([7])


def test_without_a_task_any_skipped_task_counts(work) -> None:
    with conflict(work, 7), assert_skipped() as skips:
        work.apply([7])
    assert [(skip["sender"], skip["args"]) for skip in skips] == [(work, (7,))]
    with pytest.raises(AssertionError, match="No task was skipped"), assert_skipped(within=0):
        pass


def test_no_receiver_stays_connected(work) -> None:
    before = {each[0] for each in task_skipped.receivers}
    with pytest.raises(ZeroDivisionError), assert_skipped(work):
        raise ZeroDivisionError
    with conflict(work, 7), assert_skipped(work):
        work.apply([7])
    assert {each[0] for each in task_skipped.receivers} <= before  # dead ones are removed


def test_a_skipped_task_or_a_retry_without_a_conflict_is_not_retried_for_a_conflict(
    app, work
) -> None:
    @app.task(bind=True, name="kit.own", shared=False, max_retries=1)
    @single_instance
    def own(self):
        if not self.request.retries:
            raise self.retry(countdown=0)
        return "ran"

    message = r"Task kit\.work was not retried for a conflict"
    with (
        conflict(work, 7),
        pytest.raises(AssertionError, match=message),
        assert_retried(work, within=0),
    ):
        work.apply([7])
    message = r"Task kit\.own was not retried"
    with pytest.raises(AssertionError, match=message), assert_retried(own, within=0):
        assert own.apply().result == "ran"
